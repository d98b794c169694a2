package mess

import "time"

// applyAlone applies an entry to a thread without an exchange around it.
func (t *Thread) applyAlone(e Entry, by string, now time.Time) error {
	r := role(0)
	if by == t.Requester {
		r |= asRequester
	}
	switch t.Holder {
	case by:
		r |= asHolder
	case "":
		r |= asEligible
	}
	switch e.Type {
	case "status":
		s, err := readStatus(e.Body, "status", true)
		if err != nil {
			return err
		}
		return t.setStatus(s, by, r, now)
	case "response":
		_, err := t.respond(by, r, false, now)
		return err
	case "reply":
		reply, err := readReply(e.Body, "reply")
		if err != nil || reply.Accept != nil {
			return err
		}
		if reply.Confirm != nil {
			return t.confirm(*reply.Confirm, reply.Reason, by, r, now)
		}
		return t.answers("", reply.Answers, by, r, now)
	case "answer":
		return t.answer("", by, r, now)
	case "cancel":
		if !r.any(asRequester) {
			return forbidden("only the requester may cancel")
		}
		return t.cancel(e.Body.GetStr("reason"), by, now)
	}
	return nil
}
