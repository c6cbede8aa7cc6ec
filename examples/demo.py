"""What `ramet demo` and `make demo` run: roles, gen, a fork of 4, a join, a select and a second turn, on a real
model."""

from ramet import Engine
from ramet.cli.demo import tour

if __name__ == "__main__":
    with Engine() as engine:
        tour(engine)
