package conversations

// legacy is what the rows of earlier versions say about an agreement: whose proposal stands, who sent an accept, and
// what all messages together named.
type legacy struct {
	Proposal       Side `json:"proposal"`
	AcceptSent     bool `json:"accept_sent"`
	AcceptReceived bool `json:"accept_received"`
	AcceptHeld     bool `json:"accept_held"`
}

// upgrade reads the agreement of a row that an earlier version wrote. Such a row does not tell whether an accept that
// was sent, or that waits for the owner, counts already: in an open conversation it waits for the next answer.
func (c Conversation) upgrade(old legacy) Conversation {
	if old.Proposal == "" {
		if c.Agreement != nil && c.Agreement.At.IsZero() {
			c.Agreement = nil // it was cancelled, or never proposed
		}
		return c
	}
	var terms Terms
	if c.Agreement != nil {
		terms = c.Agreement.terms()
	}
	c.Agreement = nil
	by := Theirs
	if old.Proposal == Theirs {
		by = Ours
	}
	c.Proposal = &Proposal{Terms: terms, By: old.Proposal, Intent: c.Intent}
	switch {
	case !old.AcceptSent && !old.AcceptReceived || c.State == Failed:
	case c.State == Open && (old.AcceptSent || len(c.Held) > 0):
		c.Accept = &Acceptance{Terms: terms, By: by, Held: old.AcceptHeld}
	default:
		c.Proposal.Accepted = true
		c.Agreement = Acceptance{Terms: terms, By: by}.agreement(c.Intent, c.Last)
	}
	return c
}
