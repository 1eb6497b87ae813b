"""Which elements of a server's piece belong to matrices."""

from paceline.costs.servers import Stretch, within

# Two matrices and a bias between them, as they lie in the flat parameters.
STRETCHES = [Stretch(6, True), Stretch(3, False), Stretch(4, True), Stretch(2, True)]


def test_a_piece_has_the_stretches_that_lie_in_it_with_neighbours_of_one_kind_as_one():
    assert within(STRETCHES, 0, 15) == [Stretch(6, True), Stretch(3, False), Stretch(6, True)]


def test_a_piece_may_begin_and_end_within_an_array():
    assert within(STRETCHES, 4, 8) == [Stretch(2, True), Stretch(2, False)]
    assert within(STRETCHES, 7, 8) == [Stretch(1, False)]


def test_pieces_together_have_all_elements():
    pieces = [within(STRETCHES, start, start + 5) for start in (0, 5, 10)]
    assert [sum(stretch.elements for stretch in piece) for piece in pieces] == [5, 5, 5]
