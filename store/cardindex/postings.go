package cardindex

import (
	"slices"

	"github.com/RoaringBitmap/roaring/v2"
)

// Slot identifies a card in the index. It is the card's Seq.
type Slot = uint32

// fewMax is the length above which a posting list becomes a bitmap. A shorter one takes less memory as a sorted slice.
const fewMax = 256

// posting is the ascending set of the slots that carry one term. Index.mu guards it.
type posting struct {
	few  []Slot // the slots, while many is nil
	many *roaring.Bitmap
}

func newPosting(slots []Slot) *posting {
	if len(slots) > fewMax {
		return &posting{many: roaring.BitmapOf(slots...)}
	}
	return &posting{few: slices.Clip(slices.Clone(slots))}
}

func (p *posting) add(s Slot) {
	if p.many != nil {
		p.many.Add(s)
		return
	}
	if n := len(p.few); n == 0 || p.few[n-1] < s {
		p.few = append(p.few, s)
	} else if i, found := slices.BinarySearch(p.few, s); !found {
		p.few = slices.Insert(p.few, i, s)
	}
	if len(p.few) > fewMax {
		p.many, p.few = roaring.BitmapOf(p.few...), nil
	}
}

func (p *posting) remove(s Slot) {
	if p.many != nil {
		p.many.Remove(s)
		if p.many.IsEmpty() {
			p.many = nil
		}
		return
	}
	if i, found := slices.BinarySearch(p.few, s); found {
		p.few = slices.Delete(p.few, i, i+1)
	}
}

func (p *posting) len() int {
	if p.many != nil {
		return int(p.many.GetCardinality())
	}
	return len(p.few)
}

func (p *posting) contains(s Slot) bool {
	if p.many != nil {
		return p.many.Contains(s)
	}
	_, found := slices.BinarySearch(p.few, s)
	return found
}

// bitmap returns the set as a bitmap, which the caller must not change.
func (p *posting) bitmap() *roaring.Bitmap {
	if p.many != nil {
		return p.many
	}
	return roaring.BitmapOf(p.few...)
}

func (p *posting) addTo(b *roaring.Bitmap) {
	if p.many != nil {
		b.Or(p.many)
	} else {
		b.AddMany(p.few)
	}
}

// walker iterates over a posting in ascending order.
type walker struct {
	few  []Slot
	many roaring.IntIterator
	bits bool // iterate over many, not few
}

// start begins a walk over p at its first slot that is not before position.
func (w *walker) start(p *posting, position Slot) {
	w.bits = p.many != nil
	if w.bits {
		w.many.Initialize(p.many)
		w.many.AdvanceIfNeeded(position)
		return
	}
	i, _ := slices.BinarySearch(p.few, position)
	w.few = p.few[i:]
}

func (w *walker) next() (Slot, bool) {
	if w.bits {
		if !w.many.HasNext() {
			return 0, false
		}
		return w.many.Next(), true
	}
	if len(w.few) == 0 {
		return 0, false
	}
	s := w.few[0]
	w.few = w.few[1:]
	return s, true
}

// remaining returns an upper bound for the number of slots in p after s.
func (p *posting) remaining(s Slot) int {
	if p.many != nil {
		return int(p.many.GetCardinality() - p.many.Rank(s))
	}
	i, _ := slices.BinarySearch(p.few, s)
	return len(p.few) - i
}
