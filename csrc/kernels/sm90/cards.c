/* The cards whose plans were measured, with the constants that were fitted to them. A card is a file h200.def, which
 * benchmarks/fit_sm90.py writes, and a row of CARDS. */
#include "kernels/sm90/plan.h"

typedef struct sm90_card {
    const char *name, *nearest;
    int32_t sm_count, clock_mhz, memory_gb_s; /* as device_props has them */
    sm90_model model;
} sm90_card;

#define CARD(called, sms, mhz, gb_s)                                                                                   \
    .name = "measured on an " called, .nearest = "measured on an " called ", the nearest card", .sm_count = sms,       \
    .clock_mhz = mhz, .memory_gb_s = gb_s,
#define CONSTANT(id, value) .model.id = value,
static const sm90_card cards[] = {
    {
#include "kernels/sm90/h100.def"
    },
    {
#include "kernels/sm90/h200.def"
    },
};
#undef CARD
#undef CONSTANT

/* A name that a file lacks would be 0. */
#define CARD(...)
#define CONSTANT(...) +1
#define X(...)        +1
_Static_assert((0
#include "kernels/sm90/h100.def"
                ) == (0 SM90_MODEL_CONSTANTS(X)),
               "h100.def has each constant of model.h");
_Static_assert((0
#include "kernels/sm90/h200.def"
                ) == (0 SM90_MODEL_CONSTANTS(X)),
               "h200.def has each constant of model.h");
#undef X

/* How far a device is from a card: the sum of (r - 1/r)^2, r being the ratio of each property. It grows as the logarithm
 * of r does, and gated products ask at each call. Unknown properties, 0, are alike. */
static double distance(const sm90_card *card, const device_props *props) {
    const double own[] = {props->sm_count, props->clock_mhz, props->memory_gb_s};
    const double its[] = {card->sm_count, card->clock_mhz, card->memory_gb_s};
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        const double off = own[i] > 0 ? own[i] / its[i] - its[i] / own[i] : 0.0;
        sum += off * off;
    }
    return sum;
}

/* The nearest card, and how far it is. */
static const sm90_card *card_of(const device_props *props, double *far) {
    const sm90_card *nearest = NULL;
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        const double now = distance(&cards[i], props);
        if (!nearest || now <= *far) nearest = &cards[i], *far = now;
    }
    return nearest;
}

sm90_model sm90_model_on(const device_props *props) {
    double far;
    const sm90_card *card = card_of(props, &far);
    sm90_model m = card->model;
    const double memory = props->memory_gb_s ? (double)props->memory_gb_s / card->memory_gb_s : 1.0;
    m.dram_tb_s *= memory, m.rows_free *= memory;
    if (props->clock_mhz) m.clock_ghz = props->clock_mhz * 1e-3;
    m.l2_tb_s *= m.clock_ghz / card->model.clock_ghz;
    if (props->l2_bytes) m.l2_bytes = (double)props->l2_bytes;
    return m;
}

const char *sm90_model_name(const device_props *props) {
    double far;
    const sm90_card *card = card_of(props, &far);
    return far < 4e-3 ? card->name : card->nearest;
}
