"""`tokenizer = "engine"`: the tokens of prompts come from the engines' own /tokenize, and a request is never worse
off for it. An `Odd` stands between the router and a mock and answers the questions in other ways."""
import json
import threading

from harness import MODEL, Serve, call, eventually
from test_doctor import Config, admin, doctor
from test_kv_trust import CHAT, LONG, Between, fast_mock

ASKS = f'[[models]]\nname = "{MODEL}"\ntokenizer = "engine"\n'


class Odd(Between):
    """Answers /tokenize by `answer` (bytes; None: not at all) while it is `odd`."""

    def __init__(self, engine, **settings):
        self.odd = self.answer = None
        self.stuck = threading.Event()
        super().__init__(engine, **settings)

    def changed(self, path, answer):
        if path == "/tokenize" and self.odd:
            if self.answer is None:
                self.stuck.wait()
            return self.answer or b""
        return super().changed(path, answer)

    def __exit__(self, *how):
        self.stuck.set()
        super().__exit__(*how)


def ask(router, text, path=CHAT, **more):
    body = {"model": MODEL, "max_tokens": 1, **more}
    if path == CHAT:
        body.setdefault("messages", [{"role": "user", "content": text}])
    else:
        body.setdefault("prompt", text)
    status, headers, answer = router.post(path, body)
    assert status == 200, answer
    usage = json.loads(answer)["usage"]
    return int(headers.get("x-homing-cached-tokens", -1)), usage


def questions(router, outcome=None):
    labels = {"outcome": outcome} if outcome else {}
    return router.metric("homing_tokenize_questions_total", **labels)


def follows(router):
    """The block size is learned from the first event; from then on prompts are asked about."""
    ask(router, "something else to begin with, of more than one block: " + LONG[:400])
    eventually(lambda: router.workers()[0]["cached_blocks"] > 0, "the first events")


def test_predictions_are_exact_with_the_engines_own_tokens():
    with fast_mock() as engine, Odd(engine) as between, Serve([between], ASKS) as router:
        follows(router)
        for path in (CHAT, "/v1/completions"):
            text = path + LONG

            def exact():
                predicted, usage = ask(router, text, path)
                reused = usage["prompt_tokens_details"]["cached_tokens"]
                return reused > 100 and predicted == reused
            eventually(exact, f"an exact prediction for {path}")
        # The same prompt is asked about once, whatever else its request says.
        assert questions(router, "answered") > 0
        before, known = len(between.asked), questions(router, "remembered")
        eventually(lambda: ask(router, CHAT + LONG, temperature=0.5) and questions(router, "remembered") > known,
                   "an answer that is remembered")
        assert len(between.asked) == before
        # F30: an option that decides the prompt is part of what is remembered.
        other = {"enable_thinking": False}
        eventually(lambda: ask(router, CHAT + LONG, chat_template_kwargs=other) and len(between.asked) > before,
                   "another question")
        assert json.loads(between.asked[-1])["chat_template_kwargs"] == other
        # Token ids need no question.
        before = questions(router)
        predicted, usage = ask(router, None, "/v1/completions", prompt=list(range(100, 400)))
        assert predicted == 0 and usage["prompt_tokens"] == 300
        assert questions(router) == before
        # A preview asks as the request would, and counts in nothing.
        question = {"endpoint": CHAT, "headers": {}, "body": {
            "model": MODEL, "messages": [{"role": "user", "content": CHAT + LONG}]}}
        status, _, answer = call(router.admin, "POST", "/admin/preview", question)
        assert status == 200 and questions(router) == before, answer
        assert json.loads(answer)["candidates"][0]["overlap_blocks"] > 5, answer


def test_an_engine_that_hangs_costs_one_request_its_patience_and_no_more():
    with fast_mock() as engine, Odd(engine) as between, Serve([between], ASKS) as router:
        follows(router)
        between.odd = True
        before = questions(router, "slow")
        eventually(lambda: ask(router, "hangs: " + LONG) and questions(router, "slow") > before, "it was served all the same")
        slow = questions(router, "slow")
        # While it is left alone nobody waits for it.
        ask(router, "hangs again: " + LONG)
        assert questions(router, "paused") + questions(router, "slow") > slow
        assert router.metric("homing_prompts_untokenized_total") >= 2
        # By text: the same prompt again is found, though nobody knows its tokens.
        eventually(lambda: ask(router, "hangs: " + LONG)[0] > 0, "a prediction by text")
        # And it is tried again.
        between.odd = None
        between.stuck.set()
        answered = questions(router, "answered")
        eventually(lambda: ask(router, "hangs: " + LONG) and questions(router, "answered") > answered, "an answer")


def test_answers_that_can_be_no_tokens_are_refused():
    lies = {
        "nonsense": [b'{"tokens": [1, 2], "count": 3}', b'{"tokens": []}', b"<html>", b'{"tokens": [-1]}',
                     json.dumps({"tokens": [7] * 80_000, "count": 80_000}).encode()],
        "failed": [b'{"tokens": [' + b"1, " * 1_000_000 + b"1]}"],
    }
    for outcome, answers in lies.items():
        for n, lie in enumerate(answers):
            with fast_mock() as engine, Odd(engine) as between, Serve([between], ASKS) as router:
                follows(router)
                between.odd, between.answer = True, lie
                before = questions(router, outcome)

                def refused():
                    _, usage = ask(router, f"{outcome} {n}: a prompt")
                    return usage["prompt_tokens"] > 0 and questions(router, outcome) > before
                eventually(refused, f"{outcome} {n}")
                assert questions(router, "remembered") == 0


def test_an_engine_without_the_path_is_asked_once_and_compared_by_text():
    with fast_mock() as engine, Odd(engine) as between, Serve([between], ASKS) as router:
        follows(router)
        between.status = 404
        eventually(lambda: ask(router, "no path: " + LONG) and questions(router, "refused") == 1, "a refusal")
        before, paused = len(between.asked), questions(router, "paused")
        for n in range(3):
            ask(router, f"no path {n}: " + LONG)
        assert len(between.asked) == before and questions(router, "paused") == paused + 3


def test_the_doctor_names_the_engines_own_tokenizer_and_looks_whether_it_answers():
    with fast_mock() as engine, Odd(engine) as between, Serve([between]) as router:
        with Config([between], "") as config:
            _, findings, said = doctor(*config, *admin(router))
        assert 'tokenizer = "engine"' in findings["tokenizer_missing"]["mend"], said
        with Config([between], ASKS) as config:
            _, findings, said = doctor(*config, *admin(router))
            assert not {"tokenizer_missing", "tokenize_unanswered"} & set(findings), said
            between.status = 404
            _, findings, said = doctor(*config, *admin(router))
        assert "404" in findings["tokenize_unanswered"]["what"], said
