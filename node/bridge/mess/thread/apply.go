package thread

import "time"

// Apply applies an entry that the actor by sent to a thread, without an exchange. The actor is the requester or the
// holder if the thread says so, and otherwise may claim a thread without a holder.
func (t *Thread) Apply(e Entry, by string, now time.Time) error {
	r := Role(0)
	if by == t.Requester {
		r |= AsRequester
	}
	switch t.Holder {
	case by:
		r |= AsHolder
	case "":
		r |= AsEligible
	}
	switch e.Type {
	case "status":
		s, err := ReadStatus(e.Body, "status", true)
		if err != nil {
			return err
		}
		return t.SetStatus(s, by, r, now)
	case "response":
		return t.Respond(by, r, false, now)
	case "reply":
		reply, err := ReadReply(e.Body, "reply", false)
		if err != nil || reply.Accept != nil {
			return err
		}
		if reply.Confirm != nil {
			return t.Confirm(*reply.Confirm, reply.Reason, by, r, now)
		}
		return t.AnswerAll("", reply.Answers, by, r, now)
	case "answer":
		id := e.Body.GetStr("id")
		if t.OpenQuestion(id) == nil { // perhaps the questions have no ids
			id = ""
		}
		return t.Answer(id, by, r, now)
	case "cancel":
		if !r.Has(AsRequester) {
			return Forbidden("only the requester may cancel")
		}
		return t.Cancel(e.Body.GetStr("reason"), by, now)
	}
	return nil
}
