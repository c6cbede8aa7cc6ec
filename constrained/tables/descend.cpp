// Walks the vocabulary's trie beside a deterministic byte automaton, depth first. See descend.py for the contract.

#include <cstdint>

namespace {

constexpr uint8_t UNMADE = 1, EXITS = 2, ACTS = 4;

struct Frame {
    int32_t child, end, state;
    uint8_t acts;
};

}  // namespace

extern "C" {

// One descent. Gives 0, or 1 where a list is full (the caller makes room and starts again).
// sizes: in: capacities; out: lengths, of reached, exits, acts, pending.
int32_t ramet_descend(
    const int32_t* first_child, const uint8_t* bytes,                                // trie
    const int32_t* targets, const int16_t* actions, const uint8_t* flags,            // machine
    const int32_t* nodes, const int32_t* states, int64_t num_starts,                 // where to begin
    int32_t* reached,                                                                // [sizes[0]]
    int32_t* exit_nodes, int32_t* exit_states,                                       // [sizes[1]]
    int32_t* act_nodes, int32_t* act_targets, int32_t* act_numbers,                  // [sizes[2]]
    int32_t* pending_nodes, int32_t* pending_states,                                 // [sizes[3]]
    int64_t* sizes, Frame* stack, int64_t stack_size) {
    const int64_t room[4] = {sizes[0], sizes[1], sizes[2], sizes[3]};
    int64_t used[4] = {0, 0, 0, 0};
    for (int64_t start = 0; start < num_starts; ++start) {
        int64_t depth = 0;
        int32_t node = nodes[start], state = states[start];
        for (;;) {
            // enter `node` in `state`
            const uint8_t flag = flags[state];
            if (flag & UNMADE) {
                if (used[3] >= room[3]) return 1;
                pending_nodes[used[3]] = node;
                pending_states[used[3]++] = state;
            } else {
                if (flag & EXITS) {
                    if (used[1] >= room[1]) return 1;
                    exit_nodes[used[1]] = node;
                    exit_states[used[1]++] = state;
                }
                if (depth >= stack_size) return 1;
                stack[depth++] = {first_child[node], first_child[node + 1], state, static_cast<uint8_t>(flag & ACTS)};
            }
            // find the next node to enter
            bool found = false;
            while (depth > 0 && !found) {
                Frame& top = stack[depth - 1];
                const int32_t* row = targets + static_cast<int64_t>(top.state) * 256;
                while (top.child < top.end) {
                    const int32_t child = top.child++;
                    const int32_t target = row[bytes[child]];
                    if (target < 0) continue;
                    if (top.acts) {
                        const int16_t action = actions[static_cast<int64_t>(top.state) * 256 + bytes[child]];
                        if (action != 0) {
                            if (used[2] >= room[2]) return 1;
                            act_nodes[used[2]] = child;
                            act_targets[used[2]] = target;
                            act_numbers[used[2]++] = action;
                            continue;
                        }
                    }
                    if (used[0] >= room[0]) return 1;
                    reached[used[0]++] = child;
                    if (first_child[child] == first_child[child + 1]) continue;  // a leaf: nothing to read, nothing to leave
                    node = child;
                    state = target;
                    found = true;
                    break;
                }
                if (!found) --depth;
            }
            if (!found) break;
        }
    }
    for (int i = 0; i < 4; ++i) sizes[i] = used[i];
    return 0;
}

// Set the bits of all ids that end in these nodes. single: the one id of a node, -1 none, -2 several.
int64_t ramet_mark(
    const int32_t* nodes, int64_t num_nodes, const int32_t* single, const int32_t* token_offset,
    const int32_t* token_ids, uint32_t* words) {
    int64_t marked = 0;
    for (int64_t i = 0; i < num_nodes; ++i) {
        const int32_t node = nodes[i], token = single[node];
        if (token >= 0) {
            words[token >> 5] |= 1u << (token & 31);
            ++marked;
        } else if (token == -2) {
            for (int32_t j = token_offset[node]; j < token_offset[node + 1]; ++j, ++marked) {
                words[token_ids[j] >> 5] |= 1u << (token_ids[j] & 31);
            }
        }
    }
    return marked;
}

}  // extern "C"
