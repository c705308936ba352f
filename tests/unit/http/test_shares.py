"""Fair shares: who makes room for whom."""

from hypothesis import given
from hypothesis import strategies as st

from tablegate.gateway.http.shares import Shares, network_of

ACCOUNTS = ("a", "b", "c")


@given(st.lists(st.tuples(st.sampled_from(ACCOUNTS), st.booleans()), max_size=60))
def test_who_has_the_most_makes_room(steps: list[tuple[str, bool]]) -> None:
    """As a count that is made anew each time says."""
    shares: Shares[tuple[str, int]] = Shares()
    counted: list[tuple[str, int]] = []
    for number, (account, is_added) in enumerate(steps):
        own = [holder for holder in counted if holder[0] == account]
        if is_added:
            counted.append((account, number))
            shares.add(account, (account, number))
        elif own:
            counted.remove(own[0])
            shares.remove(account, own[0])
            shares.remove(account, own[0])  # it may have made room before it ended
        sizes = {each: sum(holder[0] == each for holder in counted) for each in ACCOUNTS}
        assert len(shares) == len(counted)
        for each in ACCOUNTS:
            assert shares.of(each) == sizes[each]
            rivals = list(shares.rivals(each))
            assert bool(rivals) is (max(sizes.values()) >= sizes[each] + 2)
            if rivals:
                rival = rivals[0][0]
                assert sizes[rival] == max(sizes.values())
                assert rivals == [holder for holder in reversed(counted) if holder[0] == rival]


def test_one_account_gives_way_until_shares_are_equal() -> None:
    shares: Shares[int] = Shares()
    for number in range(100):
        shares.add("a", number)
    for number in range(100, 400):
        account = f"of {number % 3}"
        rival = next(shares.rivals(account), None)
        if rival is not None:
            shares.remove("a", rival)
            shares.add(account, number)
    assert [shares.of(account) for account in ("a", "of 0", "of 1", "of 2")] == [25, 25, 25, 25]
    assert len(shares) == 100


def test_what_a_client_chooses_of_its_address_does_not_count() -> None:
    assert network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8:1:2::7") == network_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::"
    assert network_of("2001:db8:1:3::7") != network_of("2001:db8:1:2::7")
    assert network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("fe80::1%eth0") == "fe80::"
