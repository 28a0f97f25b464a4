// SPDX-License-Identifier: Apache-2.0
// The loops of gpu_rows.py: one thread takes one row after the other. Whole numbers only, and no noise here.
//
// Cells lie column after column, tables as in layouts.py: groups of each axis, axes of each table (-1: no more) with
// their strides, and where its cells begin. Compiled with
//   THREADS      threads of a block
//   CELL_BYTES, GROUP_BYTES  of a cell of a column, and of a group
//   WIDTH        numbers of a cell: classes, or outputs
//   ASKED        what is added up: 0 rows, 1 classes, 2 gradients
//   N_CLASSES    of the target; 0 for numbers
//   MOST_AXES    of a table
//   COPIES       of a table in the block's memory, for threads side by side; 0 if it is too large for that memory

typedef unsigned long long Total;

template <int bytes> struct Whole { typedef unsigned short Type; };
template <> struct Whole<1> { typedef unsigned char Type; };
typedef Whole<CELL_BYTES>::Type Cell;
typedef Whole<GROUP_BYTES>::Type Group;

#define GRADIENT_UNITS 4096
#define LEVEL_UNITS 16

extern __shared__ int4 shared[];  // counters of the block's table, copy beside copy

struct Tables {
    const long long *features;
    const Group *groups;
    int wide;
    const int *axes;
    const unsigned *strides;
};

__device__ __forceinline__ unsigned place_of(const Tables &tables, int table, const Cell *cells, long long n_rows,
                                             long long row) {
    unsigned place = 0;
    for (int at = 0; at < MOST_AXES; at++) {
        const int axis = tables.axes[table * MOST_AXES + at];
        if (axis < 0) break;
        const Cell cell = cells[tables.features[axis] * n_rows + row];
        place += tables.groups[(long long)axis * tables.wide + cell] * tables.strides[table * MOST_AXES + at];
    }
    return place;
}

__device__ __forceinline__ void add(int *here, Total *there, long long place, int amount) {
    if (COPIES) {
        const int copies = COPIES ? COPIES : 1;
        atomicAdd(here + place * copies + threadIdx.x % copies, amount);
    } else {
        atomicAdd(there + place, (Total)(long long)amount);
    }
}

// What a row adds: rows.gradients. Quotients of numbers below 2^53 have the floors of whole numbers.
__device__ __forceinline__ void add_units(const int *scores, int target, int limit, const short *second, int n_second,
                                          const int *powers, int n_powers, int *here, Total *there, long long place) {
    if (N_CLASSES == 2) {
        const int reach = n_second / 2;
        const int away = target * GRADIENT_UNITS - second[min(max(scores[0], -reach), reach) + reach];
        add(here, there, place, min(max(away, -limit), limit));
    } else if (N_CLASSES == 0) {
        const double residual = (double)target * LEVEL_UNITS - (double)scores[0];
        const double size = residual < 0 ? -residual : residual;
        const int part = (int)min(size * GRADIENT_UNITS / limit, (double)GRADIENT_UNITS);
        add(here, there, place, residual < 0 ? -part : part);
    } else {
        int best = scores[0];
        for (int output = 1; output < WIDTH; output++) best = max(best, scores[output]);
        long long total = 0;
        for (int output = 0; output < WIDTH; output++)
            if (best - scores[output] < n_powers) total += powers[best - scores[output]];
        for (int output = 0; output < WIDTH; output++) {
            const int behind = best - scores[output];
            const long long power = behind < n_powers ? powers[behind] : 0;
            const int away = -(int)(power * GRADIENT_UNITS / total) + (output == target ? GRADIENT_UNITS : 0);
            add(here, there, place + output, away);
        }
    }
}

// A block takes some rows and one table: blocks of one table follow one another.
extern "C" __global__ void __launch_bounds__(THREADS)
add_up(const Cell *cells, const int *target, const int *scores, long long n_rows, long long rows_per_block,
       int blocks_per_table, const long long *features, const Group *groups, int wide, const int *axes,
       const unsigned *strides, const unsigned *starts, const int *sizes, int limit, const short *second, int n_second,
       const int *powers, int n_powers, Total *totals) {
    const Tables tables = {features, groups, wide, axes, strides};
    const int table = blockIdx.x / blocks_per_table, size = sizes[table] * WIDTH;
    const int copies = COPIES ? COPIES : 1;
    int *here = (int *)shared;
    Total *there = totals + (long long)starts[table] * WIDTH;
    if (COPIES) {
        for (int i = threadIdx.x; i < size * copies; i += THREADS) here[i] = 0;
        __syncthreads();
    }
    const long long first = (blockIdx.x % blocks_per_table) * rows_per_block, end = min(n_rows, first + rows_per_block);
    for (long long row = first + threadIdx.x; row < end; row += THREADS) {
        const long long place = (long long)place_of(tables, table, cells, n_rows, row) * WIDTH;
        if (ASKED == 0) add(here, there, place, 1);
        if (ASKED == 1) add(here, there, place + target[row], 1);
        if (ASKED == 2)
            add_units(scores + row * WIDTH, target[row], limit, second, n_second, powers, n_powers, here, there, place);
    }
    if (COPIES) {
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += THREADS) {
            long long sum = 0;
            for (int copy = 0; copy < copies; copy++) sum += here[i * copies + copy];
            if (sum) atomicAdd(there + i, (Total)sum);
        }
    }
}

// Add what the cells of one table give to the scores.
extern "C" __global__ void __launch_bounds__(THREADS)
add_step(const Cell *cells, int *scores, long long n_rows, long long rows_per_block, const long long *features,
         const Group *groups, int wide, const int *axes, const unsigned *strides, const int *values, int largest) {
    const Tables tables = {features, groups, wide, axes, strides};
    const long long first = blockIdx.x * rows_per_block, end = min(n_rows, first + rows_per_block);
    for (long long row = first + threadIdx.x; row < end; row += THREADS) {
        const long long place = (long long)place_of(tables, 0, cells, n_rows, row) * WIDTH;
        for (int output = 0; output < WIDTH; output++) {
            const int moved = scores[row * WIDTH + output] + values[place + output];
            scores[row * WIDTH + output] = min(max(moved, -largest), largest);
        }
    }
}
