package thread

import (
	"strconv"
)

// The kinds of turns of the owner's.
const (
	TurnWork       = "work"       // may claim it, or has
	TurnAnswer     = "answer"     // is asked something about a request of its own
	TurnConfirm    = "confirm"    // is asked whether an executor may act
	TurnRelease    = "release"    // must let it in before anybody acts
	TurnSuggestion = "suggestion" // is suggested something about a request of its own
)

// Turn names what the owner is to do about the thread: a kind and, behind a slash, what tells one such turn from the one
// before. It is "" for nothing.
func (t *Thread) Turn() string {
	switch mine := t.Requester == OwnerID; {
	case mine && t.Status == NeedsInput:
		return TurnAnswer + "/" + strconv.Itoa(t.Serial)
	case mine && t.Status == NeedsConfirmation:
		return TurnConfirm + "/" + strconv.Itoa(t.Serial)
	case t.Parked == ParkedApproval:
		return TurnRelease
	case mine && t.Status.Open() && t.OpenSuggestion() > 0:
		return TurnSuggestion + "/" + strconv.Itoa(t.OpenSuggestion())
	case !mine && t.Offered && t.IsClaimable() && t.IsOfferedTo(OwnerID), !mine && t.Holder == OwnerID && t.Status.Open() && !t.AwaitsRequester():
		asked := 0
		for _, e := range t.History {
			if c := Code(e.Action); c == NeedsInput || c == NeedsConfirmation {
				asked++
			}
		}
		return TurnWork + "/" + strconv.Itoa(asked)
	}
	return ""
}
