package thread

import (
	"strconv"
)

// Kinds of turns: what the owner can do about a thread.
const (
	TurnWork       = "work"       // may claim the thread, or holds it
	TurnAnswer     = "answer"     // must answer a question about the owner's own request
	TurnConfirm    = "confirm"    // must confirm or refuse an action of an executor
	TurnRelease    = "release"    // must let the thread in before anybody acts
	TurnSuggestion = "suggestion" // must decide about a suggestion to the owner's own request
)

// Turn returns what the owner can do about the thread, or "" for nothing: a kind and, after a slash, a part that
// distinguishes this turn from the previous one of the same kind.
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
