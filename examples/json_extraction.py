"""Text in, typed value out: the output is constrained to the type's JSON Schema, so it always parses."""

from dataclasses import dataclass

from ramet import State, assistant, function, gen, system, user


@dataclass
class Event:
    title: str
    city: str
    year: int


@function
def extract(s: State, text: str) -> Event:
    s += system("Extract the event from the text as JSON with title, city and year.")
    s += user(text)
    s += assistant(gen("event", dtype=Event, temperature=0, max_tokens=200))
    return s.get("event", Event)


def main(backend: object = None) -> Event:
    event: Event = extract.run("The first World Cup final was played in Montevideo in 1930.", backend=backend).ret_value
    print(event)
    return event


if __name__ == "__main__":
    main()
