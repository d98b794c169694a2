package conversations

// legacyAgreement is how earlier versions stored an agreement: the side whose proposal stands, the sides that sent an
// accept, and whether our accept waits for the peer's owner.
type legacyAgreement struct {
	Proposal       Side `json:"proposal"`
	AcceptSent     bool `json:"accept_sent"`
	AcceptReceived bool `json:"accept_received"`
	AcceptHeld     bool `json:"accept_held"`
}

// upgrade converts the agreement of a row that an earlier version wrote. An accept counts once it is answered. In an
// open conversation, the row does not show this in two cases: if we sent the accept, and if we received it and a message
// waits for our owner. upgrade then records an accept that does not count yet, and the next answer decides.
func (c Conversation) upgrade(old legacyAgreement) Conversation {
	if old.Proposal == "" {
		if c.Agreement != nil && c.Agreement.At.IsZero() {
			c.Agreement = nil // earlier versions kept terms here that nobody had proposed, or whose agreement was cancelled
		}
		return c
	}
	var terms Terms
	if c.Agreement != nil {
		terms = c.Agreement.terms()
	}
	c.Agreement = nil
	acceptor := Theirs
	if old.Proposal == Theirs {
		acceptor = Ours
	}
	c.Proposal = &Proposal{Terms: terms, By: old.Proposal, Intent: c.Intent}
	switch {
	case !old.AcceptSent && !old.AcceptReceived || c.State == Failed: // only a proposal, no accept that could count
	case c.State == Open && (old.AcceptSent || len(c.Held) > 0):
		c.Accept = &Acceptance{Terms: terms, By: acceptor, Held: old.AcceptHeld}
	default:
		c.Proposal.Accepted = true
		c.Agreement = Acceptance{Terms: terms, By: acceptor}.agreement(c.Intent, c.Last)
	}
	return c
}
