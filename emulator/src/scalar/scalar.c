/* Shared by the decode functions of the scalar families. */
#include "scalar/lanes.h"

ptx_type peek_type(const decoder *d) {
    decoder copy = *d;
    return take_type(&copy);
}

uint32_t result(decoder *d, int index, ptx_type type) {
    uint32_t slot = destination(d, index, type);
    if (slot == NO_SLOT) reject(d, "its result cannot be the sink _");
    return slot;
}

void choose(decoder *d, const handler_table table, ptx_type type) {
    if (!table[type]) reject(d, "%s has no type .%s in this form", d->statement->opcode, type_name(type));
    d->in->run = table[type];
    d->in->type = (uint8_t)type;
}

void operands(decoder *d, int count, ptx_type type) {
    d->in->d = result(d, 0, type);
    for (int i = 0; i < count; i++) d->in->s[i] = source(d, i + 1, type);
}
