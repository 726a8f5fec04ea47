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
