/* The error of the calling thread: as data (nvfp4_error), and the message that is made of it. */
#ifndef NVFP4_COMMON_ERROR_H
#define NVFP4_COMMON_ERROR_H

#include "nvfp4.h"

/* A rejected argument, with its value and the rule as formats in parentheses:
 *     return REJECT("b", ("K is %lld", (long long)k), ("must be a multiple of %d", 16));
 * REJECT_AS gives another status; CONTRADICTS is for a value that needs no rule: "K is 464 but a has K = 480". */
#define REJECT_AS(status, argument, value, rule) (error_value value, error_rule rule, error_end(status, argument))
#define REJECT(argument, value, rule)            REJECT_AS(NVFP4_INVALID, argument, value, rule)
#define CONTRADICTS(argument, value)             (error_value value, error_no_rule(), error_end(NVFP4_INVALID, argument))

/* A failure that no argument causes: sets the message, returns status. */
__attribute__((format(printf, 2, 3))) nvfp4_status fail(nvfp4_status status, const char *format, ...);

/* Clears the error, before a callback that may set one. */
void clear_error(void);

/* Marks in values and rules, and as names of arguments, stand for words that differ by the caller's language: the front
 * ends say "None" and "transpose_b", a C program NVFP4_AUTO and flags. */
#define ARGUMENT_TRANSPOSE      "\xEF\xB7\x91" /* the argument that chooses between A . B^T and A . B */
#define WORD_TRANSPOSED         "\xEF\xB7\x92" /* what it is for A . B^T, as a predicate, */
#define WORD_NOT_TRANSPOSED     "\xEF\xB7\x93" /* and for A . B; */
#define WORD_MUST_TRANSPOSE     "\xEF\xB7\x94" /* the rules that it be the one */
#define WORD_MUST_NOT_TRANSPOSE "\xEF\xB7\x95" /* or the other */
#define ARGUMENT_INVARIANT      "\xEF\xB7\x96" /* the argument that asks for batch invariance */
#define WORD_AUTO               "\xEF\xB7\x97" /* the backend that is chosen by the library */
#define WHERE_NOT_TRANSPOSED    "where " ARGUMENT_TRANSPOSE " " WORD_NOT_TRANSPOSED
enum { ERROR_WORDS = 8 };
typedef struct error_words {
    const char *mark[ERROR_WORDS]; /* by the mark's number; mark[0] is not used */
} error_words;

/* The words of a C program, in which nvfp4_last_error speaks. */
extern const error_words c_words;

/* The thread's error in given words; the texts stay valid until the next call of error_in. */
void error_in(const error_words *words, nvfp4_error *error);
/* Its message in given words: `argument: value; rule`. Valid as above. NULL: with its marks, to become part of another.
 */
const char *error_message_in(const error_words *words);

/* Parts of REJECT. */
__attribute__((format(printf, 1, 2))) void error_value(const char *format, ...);
__attribute__((format(printf, 1, 2))) void error_rule(const char *format, ...);
void error_no_rule(void);
nvfp4_status error_end(nvfp4_status status, const char *argument);

#endif
