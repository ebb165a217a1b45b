"""A text that no model was trained on: the perplexity of a quantised language model is compared with its original's."""

HELD_OUT_TEXT = """\
The ferry left the harbour a little after six, when the wind had already turned and the gulls were quiet. Marta stood \
at the rail with a paper bag of plums and counted the lamps along the shore. Her brother had promised to wait at the \
second pier, but he had promised the same thing in spring, and then she had carried both suitcases up the hill alone.

In the small kitchen of the mill they keep a list of everything that is borrowed. Two ladders went to the school, one \
barrel of nails to the chapel, and a brass scale to a man who repairs clocks. Nothing on the list has a date. When the \
miller is asked how long a thing may stay away, he answers that a thing comes home when it is missed.

To check a pump, close the upper valve first and wait until the needle rests. Then turn the wheel by a quarter and \
listen. A steady tone means that the seal is sound; a rattle means that air has entered, and the line has to be filled \
again from the lower tank. Write the pressure before and after into the book, with the hour and your name.

Prices of wool fell by three percent in the first week of the month and rose again by almost as much in the second. \
Traders in the north explained it by the late shearing, those in the south by the strike of the drivers. Both may be \
right. The farmers, who were not asked, sold what they had and bought seed.

def longest(words):
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best

The function returns the first of several words that are equally long, and an empty string for an empty list. It looks \
at each word once, so its time grows with the number of words and not with their order.

What do you call a river that runs only at night? The children of the valley say that it is a road, because the carts \
go to the market before dawn. Their grandmother says that it is sleep. The teacher wrote both answers on the board, \
drew a line between them and asked the class which of the two could drown a horse.
"""
