// SPDX-License-Identifier: Apache-2.0
// The loops of gpu.py: one thread takes one row down the trees of a group, one tree after the other. No noise here.
//
// A node is (feature, cut, child, leaf) as in Forest.packed_nodes; codes lie column after column. Compiled with
//   THREADS      threads of a block
//   WIDTH        numbers at a leaf: counters or values
//   STAGE_TREES  1 if the nodes and leaves of a group lie in the block's shared memory, 0 if they are read from afar
//   STAGE_ROWS   1 if the codes of the block's THREADS rows lie there too

typedef unsigned short Code;
typedef unsigned long long Total;

#define LEAF_CUT 0x7fffffff  // no code reaches it

extern __shared__ int4 shared[];  // nodes of the group, then its leaves, then one code of each thread for every column

// What both loops know: the forest, the group (trees first..last; its nodes and leaves, none if not staged), the rows.
#define ARGUMENTS                                                                                                     \
    const int4 *nodes, const int *roots, const Code *lookup, int first, int last, int first_node, int n_nodes,        \
        int first_leaf, int n_leaves, const Code *codes, long long n_rows, int n_columns, long long rows_per_block

#define FOR_EACH_ROW_OF_BLOCK                                                                                         \
    for (long long row = blockIdx.x * rows_per_block + threadIdx.x, end = min(n_rows, (blockIdx.x + 1) * rows_per_block); \
         row < end; row += THREADS)

__device__ __forceinline__ void stage_nodes(const int4 *nodes, int first_node, int n_nodes) {
    for (int i = threadIdx.x; i < n_nodes; i += THREADS) shared[i] = nodes[first_node + i];
}

// Codes of one row are THREADS apart, so that the threads of a warp use different banks whatever columns they ask for.
__device__ __forceinline__ void stage_row(Code *own, const Code *codes, long long n_rows, int n_columns, long long row) {
    if (STAGE_ROWS)
        for (int column = 0; column < n_columns; column++) own[column * THREADS] = codes[column * n_rows + row];
}

__device__ __forceinline__ int leaf_of(const int4 *nodes, int first_node, int root, const Code *lookup,
                                       const Code *own, const Code *codes, long long n_rows, long long row) {
    for (int node = root;;) {
        const int4 at = STAGE_TREES ? shared[node - first_node] : nodes[node];
        if (at.y == LEAF_CUT) return at.w;
        const int code = STAGE_ROWS ? own[at.x * THREADS] : codes[at.x * n_rows + row];
        node = at.z + (at.y >= 0 ? code >= at.y : lookup[code - 1 - at.y]);
    }
}

// Add every row (or those a tree owns) to its leaf: its class (levels 0), or the rotated pair of its target.
extern "C" __global__ void __launch_bounds__(THREADS)
count_rows(ARGUMENTS, const int *target, const int *owner, int levels, Total *totals) {
    unsigned *counters = (unsigned *)(shared + n_nodes);  // the host keeps rows_per_block so small that none overflows
    Code *own = (Code *)(counters + n_leaves * WIDTH) + threadIdx.x;
    stage_nodes(nodes, first_node, n_nodes);
    for (int i = threadIdx.x; i < n_leaves * WIDTH; i += THREADS) counters[i] = 0;
    __syncthreads();

    FOR_EACH_ROW_OF_BLOCK {
        const int begin = owner ? max(first, owner[row]) : first, stop = owner ? min(last, owner[row] + 1) : last;
        if (begin >= stop) continue;
        stage_row(own, codes, n_rows, n_columns, row);
        const int value = target[row];
        for (int tree = begin; tree < stop; tree++) {
            const int leaf = leaf_of(nodes, first_node, roots[tree], lookup, own, codes, n_rows, row);
            const int place = (levels ? 0 : value), amount = levels ? value : 1;
            if (STAGE_TREES) {
                unsigned *counter = counters + (leaf - first_leaf) * WIDTH;
                atomicAdd(counter + place, (unsigned)amount);
                if (levels) atomicAdd(counter + 1, (unsigned)(levels - value));
            } else {
                Total *total = totals + (long long)leaf * WIDTH;
                atomicAdd(total + place, (Total)amount);
                if (levels) atomicAdd(total + 1, (Total)(levels - value));
            }
        }
    }

    __syncthreads();
    for (int i = threadIdx.x; i < n_leaves * WIDTH; i += THREADS)
        if (counters[i]) atomicAdd(totals + (long long)first_leaf * WIDTH + i, (Total)counters[i]);
}

// Add up leaf values, in the order of the trees, so that rounding is that of the processor.
extern "C" __global__ void __launch_bounds__(THREADS)
sum_rows(ARGUMENTS, const double *values, double *sums) {
    double *here = (double *)(shared + n_nodes);
    Code *own = (Code *)(here + n_leaves * WIDTH) + threadIdx.x;
    stage_nodes(nodes, first_node, n_nodes);
    for (int i = threadIdx.x; i < n_leaves * WIDTH; i += THREADS) here[i] = values[(long long)first_leaf * WIDTH + i];
    __syncthreads();

    FOR_EACH_ROW_OF_BLOCK {
        stage_row(own, codes, n_rows, n_columns, row);
        double sum[WIDTH];
        for (int j = 0; j < WIDTH; j++) sum[j] = sums[row * WIDTH + j];
        for (int tree = first; tree < last; tree++) {
            const int leaf = leaf_of(nodes, first_node, roots[tree], lookup, own, codes, n_rows, row);
            const double *value = STAGE_TREES ? here + (leaf - first_leaf) * WIDTH : values + (long long)leaf * WIDTH;
            for (int j = 0; j < WIDTH; j++) sum[j] += value[j];
        }
        for (int j = 0; j < WIDTH; j++) sums[row * WIDTH + j] = sum[j];
    }
}
