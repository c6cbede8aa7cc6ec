"""Let the model choose, and see how sure it is: all choices are scored in one pass, with real probabilities."""

from ramet import State, assistant, function, select, system, user

CHOICES = ["positive", "negative", "neutral"]


@function
def sentiment(s: State, review: str) -> None:
    s += system("Classify the sentiment of a review: positive, negative or neutral.")
    s += user(review)
    s += assistant(select("label", CHOICES))


def main(backend: object = None) -> list[str]:
    reviews = ["I loved every minute of it.", "It broke after a day.", "It arrived on Tuesday."]
    labels = []
    for state, review in zip(sentiment.run_batch([(r,) for r in reviews], backend=backend), reviews, strict=True):
        probabilities = dict(zip(CHOICES, state.get_meta_info("label")["probabilities"], strict=True))
        labels.append(state["label"])
        print(f"{state['label']:<8} ({probabilities[state['label']]:.0%})  {review}")
    return labels


if __name__ == "__main__":
    main()
