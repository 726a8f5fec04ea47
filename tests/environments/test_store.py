"""Who builds an environment, among those who would at the same time."""

from __future__ import annotations

from serried.environments.store import Store


def test_who_comes_while_the_one_before_tidies_up_has_no_claim_and_gets_one_next_time(tmp_path, monkeypatch):
    store, numbers = Store(tmp_path, "env-1"), Store._numbers

    def tidied_up_meanwhile(self):
        found = numbers(self)
        self._claims.rmdir()
        return found

    monkeypatch.setattr(Store, "_numbers", tidied_up_meanwhile)
    assert store.claim() is None
    monkeypatch.undo()
    assert store.claim() is not None


def test_who_finds_it_built_leaves_what_building_it_said(tmp_path):
    store = Store(tmp_path, "env-1", "done")
    builder = store.claim()
    builder.prefix.mkdir()
    (builder.prefix / "done").touch()
    builder.log.touch()
    store.publish(builder, {})
    store.tidy(builder)

    store.tidy(store.claim())

    assert (store.finished(), builder.log.exists()) == (builder.prefix, True)
