/* PTX as text, as a syntax tree, and as decoded instructions.
 *
 * Loading has three steps. The parser (lex.c, parse.c) turns text into statements. The decoder (decode.c) hands each
 * statement to the family that claims its opcode; the family takes the modifiers and operands that it knows into an
 * `instr`; anything left over rejects the module with file, line and text. The interpreter (simt.c) runs `instr`s
 * and never sees text.
 *
 * A register is a slot of 32 lanes in the warp's register file:
 *   predicate           a 32-bit mask of lanes
 *   8, 16, 32 bits      uint32_t[32], upper bits zero
 *   64 bits             uint64_t[32]
 *   128 bits            unsigned __int128[32]
 * Immediates, addresses of variables and constant special registers are slots too, filled when a warp starts, so
 * that every source operand is the offset of a slot. */
#ifndef EMULATOR_PTX_H
#define EMULATOR_PTX_H

#include <stdint.h>
#include <stdio.h>

/* ---- types ---- */

typedef enum {
    TYPE_NONE,
    TYPE_PRED,
    TYPE_B8,
    TYPE_B16,
    TYPE_B32,
    TYPE_B64,
    TYPE_B128,
    TYPE_U8,
    TYPE_U16,
    TYPE_U32,
    TYPE_U64,
    TYPE_S8,
    TYPE_S16,
    TYPE_S32,
    TYPE_S64,
    TYPE_F16,
    TYPE_F16X2,
    TYPE_BF16,
    TYPE_BF16X2,
    TYPE_F32,
    TYPE_F32X2,
    TYPE_F64,
    TYPE_TF32,
    TYPE_E4M3,
    TYPE_E5M2,
    TYPE_E2M1,
    TYPE_E2M3,
    TYPE_E3M2,
    TYPE_UE8M0,
    TYPE_UE4M3,
    TYPE_E4M3X2,
    TYPE_E5M2X2,
    TYPE_E2M1X2,
    TYPE_E2M3X2,
    TYPE_E3M2X2,
    TYPE_UE8M0X2,
    TYPE_E4M3X4,
    TYPE_E5M2X4,
    TYPE_E2M1X4,
    TYPE_E2M3X4,
    TYPE_E3M2X4,
    TYPE_U4,
    TYPE_S4,
    TYPE_B1,
    TYPE_COUNT
} ptx_type;

int type_bits(ptx_type type); /* size in bits; a predicate has 1 */
const char *type_name(ptx_type type);
ptx_type type_of_name(const char *name); /* "u32" -> TYPE_U32, TYPE_NONE if it is no type */

typedef enum {
    SPACE_NONE, /* generic */
    SPACE_REG,
    SPACE_PARAM,
    SPACE_CONST,
    SPACE_GLOBAL,
    SPACE_LOCAL,
    SPACE_SHARED, /* .shared, .shared::cta */
    SPACE_SHARED_CLUSTER
} ptx_space;

/* ---- syntax tree ---- */

typedef struct variable variable;
typedef struct function function;
typedef struct module module;
typedef struct entry entry;

typedef enum {
    OPERAND_NONE,
    OPERAND_REGISTER,  /* reg; name: a selector written behind it (%r1.b0: "b0"), else NULL */
    OPERAND_IMMEDIATE, /* bits; is_float: of a floating literal, 32 (0f...) or 64 (0d... and decimal), and value */
    OPERAND_SPECIAL,   /* name: "%tid.x" */
    OPERAND_SYMBOL,    /* name of a variable (reg: which one), function or label (+ bits as offset) */
    OPERAND_ADDRESS,   /* [base + offset]: base in items[0]; [a, {c0, c1}, m] keeps a, vector, m in items */
    OPERAND_VECTOR,    /* {items...}; also the lists in parentheses of a call, and targets of brx.idx and call */
    OPERAND_SINK       /* _ */
} operand_kind;

typedef struct operand operand;
struct operand {
    operand_kind kind;
    int negated; /* !p as a source predicate */
    variable *reg;
    const char *name;
    int64_t bits; /* immediate, or byte offset of a symbol or address */
    double value; /* of a floating literal */
    int is_float;
    operand *items;
    int count;
    operand *second; /* %r|%p: what follows the bar */
};

/* A register, parameter or variable of any space. */
struct variable {
    const char *name;
    ptx_space space;
    ptx_type type;
    int vector; /* 1, 2 or 4 (.v2, .v4) */
    int64_t align, bytes;
    int is_array, is_extern;
    int is_used;         /* by the entry that is being built */
    int is_open;         /* an array whose first dimension is not written */
    variable **elements; /* of a vector register: one variable each */
    variable *replaced;  /* an extern declaration: its definition in the same file */
    variable *next_parameter;
    int is_kernel_parameter; /* of an .entry: in the launch's parameters. Those of a .func are in local memory */
    uint32_t slot;           /* registers: offset in the register file */
    int64_t
        address; /* other spaces: offset in it once laid out (shared: within the window; global, const: host pointer) */
    /* initial bytes of .global and .const, and addresses to be put into them */
    uint8_t *initial;
    struct relocation {
        struct relocation *next;
        int64_t offset, addend;
        const char *symbol;
        int generic, bytes;
        uint64_t mask; /* 0xff00(symbol): these bits of the address, shifted down */
    } *relocations;
    variable *next;
};

typedef struct statement {
    const char *text; /* as written, one line */
    int line;
    variable *guard;
    int guard_negated;
    const char *opcode;     /* before the first dot */
    const char **modifiers; /* without dots, in order: "async", "bulk", "shared::cluster", "f32"; at most 32 */
    int modifier_count;
    operand *operands; /* at most 32 */
    int operand_count;
} statement;

/* ---- decoded instructions ---- */

typedef struct warp warp;
typedef struct instr instr;

/* What a handler tells the interpreter about its instruction. A handler that finds a fault calls fault() instead. */
typedef enum {
    RUN_NEXT,  /* done: go on behind it */
    RUN_YIELD, /* done, and let others run first (a poll that failed, nanosleep) */
    RUN_PARK,  /* cannot be done yet: nothing was changed; try again when something wakes this warp */
    RUN_JUMP   /* done, and the handler has set where each lane goes on */
} run_result;

/* Runs the instruction for `lanes`, which are never none: those of the current fragment whose guard is true. */
typedef run_result run_function(warp *w, const instr *in, uint32_t lanes);

#define MAX_SLOTS 8
#define NO_SLOT   UINT32_MAX

struct instr {
    run_function *run;
    uint32_t guard; /* slot of the guard predicate, NO_SLOT: none */
    uint8_t guard_negated;
    uint8_t type, type2;                 /* ptx_type */
    uint8_t space;                       /* ptx_space */
    uint8_t lanes_meet, lanes_part;      /* where lanes of a warp run apart (simt.c): set by decode.c */
    uint32_t d, d2;                      /* destination slots, NO_SLOT: the sink */
    uint32_t s[6];                       /* source slots */
    int64_t offset;                      /* [s[0] + offset] */
    int64_t imm;                         /* for the family */
    uint32_t mode;                       /* for the family: rounding, comparison, scope ... */
    uint32_t vector;                     /* elements of a vector operand */
    const uint32_t *vd, *vs;             /* their slots */
    void *extra;                         /* the family's own struct, from decode_alloc */
    struct special_reads *special_reads; /* %clock and the like, to be read into slots first: decode.c */
    int32_t target;                      /* branches: index of the instruction to go to */
    int32_t line;
    const char *text;
    const char *name; /* full mnemonic, for counts */
    uint64_t executions, lane_executions;
};

/* A .entry or .func. */
struct function {
    const char *name;
    module *in;
    function *next;
    int is_entry, is_declaration, line;
    variable *parameters; /* in order, chained by next_parameter */
    variable *results;
    variable *variables; /* every register and variable of every scope in it */
    statement *statements;
    int statement_count;
    struct label {
        const char *name; /* an operand that names this label has this pointer */
        int statement;
        struct label *next;
        struct scope *scope; /* while it is parsed: where it is, what else has the name */
        struct label *shadowed;
        struct name *of;
    } *labels;
    /* directives, 0 where absent */
    int maxntid[3], reqntid[3], minnctapersm, maxnreg, reqnctapercluster[3], explicitcluster;
    int64_t local_bytes; /* of its .local variables and .param variables; scopes that exclude each other overlap */
    /* after decoding. An entry decodes its own copies of the functions that it calls (entry->functions), so that each
     * has its own part of the entry's register file and of the thread's local memory. */
    instr *code;
    int length;
    const function *original; /* what it is a copy of; the address of a function is that of the original */
    uint32_t registers_begin, registers_end; /* in the register file */
    int64_t local_base;
    int recursive; /* may be called again before it returns: a call saves its registers and local memory */
};

/* One file of PTX, loaded. Everything in it is allocated from one arena and freed with it. */
struct module {
    const char *file;
    const char *target; /* "sm_100a" */
    int sm, suffix;     /* 100, 'a' or 'f' or 0 */
    int version;        /* 90 for .version 9.0 */
    function *functions;
    variable *variables; /* .global, .const, .shared of module scope */
    struct alias {
        const char *name, *target;
        struct alias *next;
    } *aliases;
    entry *entries;
    struct arena *arena;
};

/* Parses and decodes PTX text. NULL: *error holds a message (malloc'd). `file` is for messages. */
module *module_load(const char *text, const char *file, char **error);
void module_free(module *m);
variable *module_variable(const module *m, const char *name);
/* Its name for messages, a C++ name demangled and shortened (title.c). Good until the next call. */
const char *function_title(const function *f);

/* ---- entries: what the interpreter needs to run one ---- */

/* Filled once for each .entry: the layout of everything that the entry and the functions it calls can touch. */
struct entry {
    entry *next;
    function *function;
    module *in;
    uint32_t register_bytes; /* of a warp's register file */
    /* slots to fill when a warp starts */
    struct fill {
        uint32_t slot;
        ptx_type type;       /* of the slot */
        uint64_t bits[2];    /* the same in every lane ... */
        const char *special; /* ... or a special register's name, with the .x if it has one: special_fill (simt.c);
                              * or "param:OFFSET": launch.parameters + OFFSET, as a host pointer;
                              * or "shared:OFFSET": own_shared_address(cta, OFFSET), without SHARED_WINDOW */
        enum { SAME_IN_GRID, SAME_IN_CTA, SAME_IN_WARP } scope;
    } *fills;
    int fill_count;
    function **functions; /* [0] is the entry's own, then the copies of those that it calls */
    int function_count;
    int64_t static_shared;  /* bytes of .shared variables, from SHARED_BASE on */
    int64_t dynamic_offset; /* where the extern .shared array begins, in the shared window */
    int64_t local_bytes;    /* a thread */
    int64_t parameter_bytes;
    int uses_async_proxy; /* has an instruction that reads or writes shared memory through the async proxy */
    int uses_tcgen05, uses_cluster;
    int uses_scratch; /* %reserved_smem_offset_1: may touch the shared memory that is the system's */
};

/* NULL and an error message if there is no such entry. Owned by the module. */
entry *module_entry(module *m, const char *name, char **error);

/* ---- the decoder, as an instruction family sees it ---- */

typedef struct decoder decoder;

/* Fills *d->in from d->statement. Returns 1; or 0 if it is not this family's instruction and nothing was taken (several
 * families may claim an opcode: `add` is in integer.c and in float.c); or does not return (reject). */
typedef int decode_function(decoder *d);

typedef struct {
    const char *opcode;
    decode_function *decode;
} opcode_entry;

/* Every family defines one table, ended by {0}; decode.c lists the tables. */
#define OPCODE_TABLES(X)                                                                                               \
    X(move_opcodes)                                                                                                    \
    X(integer_opcodes)                                                                                                 \
    X(bits_opcodes)                                                                                                    \
    X(video_opcodes)                                                                                                   \
    X(float_opcodes)                                                                                                   \
    X(half_opcodes)                                                                                                    \
    X(convert_opcodes)                                                                                                 \
    X(compare_opcodes)                                                                                                 \
    X(control_opcodes)                                                                                                 \
    X(memory_opcodes)                                                                                                  \
    X(atomic_opcodes)                                                                                                  \
    X(warp_opcodes)                                                                                                    \
    X(barrier_opcodes)                                                                                                 \
    X(copy_opcodes)                                                                                                    \
    X(mbarrier_opcodes)                                                                                                \
    X(bulk_opcodes)                                                                                                    \
    X(tma_opcodes)                                                                                                     \
    X(matrix_opcodes)                                                                                                  \
    X(mma_opcodes)                                                                                                     \
    X(wmma_opcodes)                                                                                                    \
    X(wgmma_opcodes)                                                                                                   \
    X(tmem_opcodes)                                                                                                    \
    X(tcgen05_opcodes)                                                                                                 \
    X(cluster_opcodes)                                                                                                 \
    X(grid_opcodes)

struct decoder {
    module *module;
    function *function;
    entry *entry;               /* whose register file is being laid out */
    const statement *statement; /* being decoded */
    instr *in;                  /* being filled; zeroed but for line, text, name, guard and d = d2 = s[] = NO_SLOT */
    uint32_t taken;             /* bit i: modifier i has been taken */
    uint32_t operands_taken;    /* bit i: operand i has been taken */
    struct decoder_state *state;
};

/* Rejects the module: file, line, text and this reason. */
_Noreturn void reject(decoder *d, const char *reason, ...) __attribute__((format(printf, 2, 3)));
void *decode_alloc(decoder *d, size_t bytes); /* zeroed; lives as long as the module */

/* Modifiers. Each returns what it took, and takes only what has not been taken. */
int has_modifier(const decoder *d, const char *name);  /* looks, does not take */
int take(decoder *d, const char *name);                /* 1 if the modifier was there */
void need(decoder *d, const char *name);               /* rejects if it is not there */
int take_one_of(decoder *d, const char *const *names); /* index in a NULL-ended list, -1: none of them */
ptx_type take_type(decoder *d);                        /* the first modifier left that names a type; TYPE_NONE: none */
ptx_type need_type(decoder *d);
/* The first one left of .global, .shared, .shared::cta, .shared::cluster, .local, .const, .param, .param::entry and
 * .param::func; none: generic. */
ptx_space take_space(decoder *d);

/* Operands, by index. Reading one takes it. */
int operand_count(const decoder *d);
const operand *operand_at(decoder *d, int index);
/* A register of the type's size, an immediate or a special register or an address as a value: the slot that holds it.
 */
uint32_t source(decoder *d, int index, ptx_type type);
uint32_t source_of(decoder *d, const operand *o, ptx_type type);
/* As source, for a predicate operand; *negated says that it is written !p. */
uint32_t source_predicate(decoder *d, int index, int *negated);
uint32_t destination(decoder *d, int index, ptx_type type); /* NO_SLOT for the sink */
uint32_t destination_of(decoder *d, const operand *o, ptx_type type);
/* d|p: the predicate behind the bar; NO_SLOT if there is none. */
uint32_t second_destination(decoder *d, int index, ptx_type type);
/* A vector operand {..} (or a single register: length 1): slots in an array that lives as long as the module. */
const uint32_t *source_vector(decoder *d, int index, ptx_type type, int *length);
const uint32_t *destination_vector(decoder *d, int index, ptx_type type, int *length);
/* [base + offset]: the slot of the base (64 bits or, for shared, 32: *bits says which the register has; symbols come in
 * as 64) and the offset. A register base smaller than 64 bits is read as unsigned. */
uint32_t source_address(decoder *d, int index, int64_t *offset, int *bits);
/* The constant that an operand must be; rejects anything else. */
int64_t constant(decoder *d, int index);
int is_constant(decoder *d, int index, int64_t *value);
int32_t label_target(decoder *d, int index); /* index of an instruction of this function */
/* The slot of a register that the program does not name, one for each entry, made when it is first asked for: state
 * that instructions keep between them (the carry flag, a predicate). */
uint32_t hidden_register(decoder *d, const char *name, ptx_type type);
int32_t label_target_of(decoder *d, const operand *o);
/* A %clock or another special register that changes may be a source too: decode.c has it read before the handler runs.
 */

/* Rejects unless the file's .target is sm_`least` or later (0: no number is enough) or one of `specific`, a list like
 * "90a 100f" (target.c); `what` begins the message. For what target.c's own table cannot say by modifiers. */
void need_target(decoder *d, int least, const char *specific, const char *what);

/* Done with a statement: rejects it if a modifier or an operand was left. decode.c calls it after the family. */
void decode_finish(decoder *d);

#endif
