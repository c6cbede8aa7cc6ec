// Walks the vocabulary's trie beside a deterministic byte automaton: one scan in preorder. See descend.py.

#include <cstdint>

namespace {

constexpr uint8_t UNMADE = 1, EXITS = 2, ACTS = 4;
constexpr int32_t UNBOUNDED = 1 << 30;

// What holds at one depth of the walk: the state, and what the edges since the walk began demand of the counter.
struct Place {
    int32_t state, low, high, add;
};

struct Trie {
    const uint8_t* byte;
    const int32_t *depth, *end, *single, *token_offset, *token_ids;
};

struct Machine {
    const int32_t* targets;
    const int16_t* actions;
    const uint8_t* flags;
    const int32_t* action_values;  // [A, 3] low, high, add
};

// Whether a token ends in a node is a coin toss to the branch predictor: no branch on it.
inline void mark(const Trie& trie, int32_t node, uint32_t* words) {
    const int32_t token = trie.single[node];
    uint32_t nowhere = 0;
    uint32_t* word = token < 0 ? &nowhere : words + (token >> 5);
    *word |= 1u << (token & 31);
    if (token == -2) {
        for (int32_t j = trie.token_offset[node]; j < trie.token_offset[node + 1]; ++j) {
            words[trie.token_ids[j] >> 5] |= 1u << (trie.token_ids[j] & 31);
        }
    }
}

// A list of rows of `width` int32 that knows when it is full.
struct List {
    int32_t* data;
    int64_t room, length;
    bool full;

    void add(int32_t node, const Place& place) {
        if (length >= room) {
            full = true;
            return;
        }
        int32_t* row = data + 5 * length++;
        row[0] = node;
        row[1] = place.state;
        row[2] = place.low;
        row[3] = place.high;
        row[4] = place.add;
    }
};

}  // namespace

extern "C" {

// Starts, exits, counted and pending are rows (node, state, low, high, add). Tokens of nodes that are reached in the
// window (low, high) are marked in `words`; nodes reached in a narrower one are listed in `counted`. Gives 0, or 1
// where a list is full (the caller makes room and starts again). lengths: of exits, counted, pending. Nodes that are
// `skipped` (null: none) are passed over with all below them.
int32_t ramet_descend(
    const uint8_t* byte, const uint8_t* skipped, const int32_t* depth, const int32_t* end, const int32_t* single, const int32_t* token_offset,
    const int32_t* token_ids, const int32_t* targets, const int16_t* actions, const uint8_t* flags,
    const int32_t* action_values, const int32_t* starts, int64_t num_starts, int32_t low, int32_t high,
    int32_t* exits, int32_t* counted, int32_t* pending, int64_t room, int64_t* lengths, uint32_t* words,
    int32_t* stack, int64_t* row_stack) {
    const Trie trie = {byte, depth, end, single, token_offset, token_ids};
    const Machine machine = {targets, actions, flags, action_values};
    List exit_list = {exits, room, 0, false}, counted_list = {counted, room, 0, false};
    List pending_list = {pending, room, 0, false};
    Place* places = reinterpret_cast<Place*>(stack);
    const int32_t** rows = reinterpret_cast<const int32_t**>(row_stack);

    for (int64_t start = 0; start < num_starts; ++start) {
        const int32_t* row = starts + 5 * start;
        const int32_t root = row[0], stop = trie.end[root], base = trie.depth[root];
        Place here = {row[1], row[2], row[3], row[4]};
        const uint8_t flag = machine.flags[here.state];
        if (flag & UNMADE) {
            pending_list.add(root, here);
            continue;
        }
        if (flag & EXITS) exit_list.add(root, here);
        places[0] = here;
        rows[0] = machine.targets + static_cast<int64_t>(here.state) * 256;
        int32_t node = root + 1;
        while (node < stop) {
            if (skipped && skipped[node]) {
                node = trie.end[node];
                continue;
            }
            const int32_t level = trie.depth[node] - base;
            const int32_t target = rows[level - 1][trie.byte[node]];
            if (target < 0) {
                node = trie.end[node];
                continue;
            }
            const Place& above = places[level - 1];
            here = above;
            here.state = target;
            if (machine.flags[above.state] & ACTS) {
                const int16_t action = machine.actions[static_cast<int64_t>(above.state) * 256 + trie.byte[node]];
                const int32_t* value = machine.action_values + 3 * action;
                if (value[0] - above.add > here.low) here.low = value[0] - above.add;
                if (value[1] < UNBOUNDED && value[1] - above.add < here.high) here.high = value[1] - above.add;
                here.add += value[2];
                if (here.low > here.high) {
                    node = trie.end[node];
                    continue;
                }
            }
            if (here.low == low && here.high == high) {
                mark(trie, node, words);
            } else if (trie.single[node] != -1) {
                counted_list.add(node, here);
            }
            const uint8_t state_flag = machine.flags[target];
            if ((state_flag & (UNMADE | EXITS)) && trie.end[node] > node + 1) {
                if (state_flag & UNMADE) {
                    pending_list.add(node, here);
                    node = trie.end[node];
                    continue;
                }
                exit_list.add(node, here);
            }
            places[level] = here;
            rows[level] = machine.targets + static_cast<int64_t>(target) * 256;
            ++node;
        }
    }
    lengths[0] = exit_list.length;
    lengths[1] = counted_list.length;
    lengths[2] = pending_list.length;
    return exit_list.full || counted_list.full || pending_list.full;
}

// Set the bits of the ids that end in those nodes of `counted` whose window holds `counter`.
void ramet_mark(
    const int32_t* counted, int64_t num, int32_t counter, const int32_t* single, const int32_t* token_offset,
    const int32_t* token_ids, uint32_t* words) {
    const Trie trie = {nullptr, nullptr, nullptr, single, token_offset, token_ids};
    for (int64_t i = 0; i < num; ++i) {
        const int32_t* row = counted + 5 * i;
        if (row[2] <= counter && counter <= row[3]) mark(trie, row[0], words);
    }
}

}  // extern "C"
