package thread

import "time"

// Apply applies an entry of an actor to a thread outside of an exchange (the server that keeps threads), for example to
// a thread file. The roles of the actor follow from the requester and the holder of the thread. If the thread has no
// holder, any actor may claim it.
func (t *Thread) Apply(e Entry, actor string, now time.Time) error {
	r := Role(0)
	if actor == t.Requester {
		r |= AsRequester
	}
	switch t.Holder {
	case actor:
		r |= AsHolder
	case "":
		r |= AsEligible
	}
	switch e.Type {
	case "status":
		s, err := ReadStatus(e.Body, "status", Lax)
		if err != nil {
			return err
		}
		return t.SetStatus(s, actor, r, now)
	case "response":
		const isLone = false // a status completes the thread
		return t.Respond(actor, r, isLone, now)
	case "reply":
		reply, err := ReadReply(e.Body, "reply", Strict)
		if err != nil || reply.Accept != nil {
			return err
		}
		if reply.Confirm != nil {
			return t.Confirm(*reply.Confirm, reply.Reason, actor, r, now)
		}
		return t.AnswerAll("", reply.Answers, actor, r, now)
	case "answer":
		id := e.Body.GetStr("id")
		if t.OpenQuestion(id) == nil { // perhaps the questions have no ids
			id = ""
		}
		return t.Answer(id, actor, r, now)
	case "cancel":
		if !r.Has(AsRequester) {
			return Forbidden("only the requester may cancel")
		}
		return t.Cancel(e.Body.GetStr("reason"), actor, now)
	}
	return nil
}
