package thread

import (
	"strconv"
)

// Kinds of turns. It is the owner's turn in a thread if the owner can do something about the thread.
const (
	TurnWork       = "work"       // the owner may claim the thread, or holds it
	TurnAnswer     = "answer"     // an executor waits for an answer about the owner's request
	TurnConfirm    = "confirm"    // an executor waits until the owner confirms or refuses an action
	TurnRelease    = "release"    // the thread waits until the owner approves it
	TurnSuggestion = "suggestion" // the owner can decide about a suggestion to change the owner's request
)

// Turn returns the owner's turn in the thread, or "" if the owner can do nothing about it. A turn is a kind and, except
// for TurnRelease, a slash and a number. The number changes when the same kind of turn comes again, for example with
// another question.
func (t *Thread) Turn() string {
	switch mine := t.Requester == OwnerID; {
	case mine && t.Status == NeedsInput:
		return TurnAnswer + "/" + strconv.Itoa(t.Serial)
	case mine && t.Status == NeedsConfirmation:
		return TurnConfirm + "/" + strconv.Itoa(t.Serial)
	case t.Parked == ParkedApproval:
		return TurnRelease
	case mine && t.Status.Open() && t.OpenSuggestion("") > 0:
		return TurnSuggestion + "/" + strconv.Itoa(t.OpenSuggestion(""))
	case !mine && t.Offered && t.IsClaimable() && t.IsOfferedTo(OwnerID), !mine && t.Holder == OwnerID && t.Status.Open() && !t.AwaitsRequester():
		questions := 0
		for _, e := range t.History {
			if c := Code(e.Action); c == NeedsInput || c == NeedsConfirmation {
				questions++
			}
		}
		return TurnWork + "/" + strconv.Itoa(questions)
	}
	return ""
}
