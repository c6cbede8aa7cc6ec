"""A row of ids that forks without a copy and never mixes its owners up."""

import random

from ramet.runtime.scheduler.token_row import TokenRow


def test_forks_write_apart() -> None:
    parent = TokenRow([1, 2, 3])
    child = parent.fork()
    parent.append(4)
    child.extend([5, 6])
    grandchild = child.fork()
    child.truncate(1)
    assert ([*parent], [*child], [*grandchild]) == ([1, 2, 3, 4], [1], [1, 2, 3, 5, 6])
    child.append(9)
    assert ([*child], [*grandchild]) == ([1, 9], [1, 2, 3, 5, 6])


def test_it_reads_like_a_list_whatever_its_history() -> None:
    chooser = random.Random(0)
    rows: list[tuple[TokenRow, list[int]]] = [(TokenRow(), [])]
    for step in range(3000):
        row, model = chooser.choice(rows)
        match chooser.choice(["append", "extend", "truncate", "fork", "read"]):
            case "append":
                row.append(step)
                model.append(step)
            case "extend":
                row.extend(range(step, step + 3))
                model.extend(range(step, step + 3))
            case "truncate":
                length = chooser.randint(0, len(model))
                row.truncate(length)
                del model[length:]
            case "fork" if len(rows) < 20:
                rows.append((row.fork(), list(model)))
            case _:
                start, stop = chooser.randint(-5, 30), chooser.randint(-5, 30)
                assert row[start:stop].tolist() == model[start:stop]
                assert not model or (row[-1] == model[-1] and row[len(model) // 2] == model[len(model) // 2])
        assert len(row) == len(model)
    assert all([*row] == model for row, model in rows)


def test_names_stay_with_their_ids_and_go_with_them() -> None:
    row = TokenRow(range(40))
    row.names(4).extend(bytes([n]) for n in range(10))
    fork = row.fork()
    fork.truncate(18)
    fork.extend([7] * 10)
    assert fork.names(4) == [bytes([n]) for n in range(4)]
    assert len(row.names(4)) == 10
    row.append(1)
    row.truncate(39)
    assert len(row.names(4)) == 9
    assert row.names(8) == []
