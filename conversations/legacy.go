package conversations

// legacy holds what rows of earlier versions contain about an agreement: which side's proposal stands, and which side
// sent an accept.
type legacy struct {
	Proposal       Side `json:"proposal"`
	AcceptSent     bool `json:"accept_sent"`
	AcceptReceived bool `json:"accept_received"`
	AcceptHeld     bool `json:"accept_held"`
}

// upgrade converts the agreement of a row that an earlier version wrote. Such a row does not show whether an accept
// that was sent, or that waits for the owner, counts already. In an open conversation, such an accept waits for the
// next answer.
func (c Conversation) upgrade(old legacy) Conversation {
	if old.Proposal == "" {
		if c.Agreement != nil && c.Agreement.At.IsZero() {
			c.Agreement = nil // the agreement was cancelled, or never proposed
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
