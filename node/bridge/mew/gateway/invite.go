package gateway

import (
	"crypto/rand"
	"encoding/base64"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Invitation is the content of the notice to the operator about an invite with an email address (MEW-28). It does not
// contain the token. Participant and Email come from the inviter. Participant is a valid name, and Email is
// reduced to printable characters.
type Invitation struct {
	Space, Participant, Email, URL string
}

// invite creates a participant and sends its token only to the inviter (MEW-27).
func (s *Space) invite(p *submission) *envelope.Refusal {
	p.silent = true
	name := p.Payload.GetStr("participant_id")
	if !envelope.IsName(name) {
		return envelope.RefuseWith(400, "invalid_request", "participant_id contains invalid characters")
	}
	caps := s.cfg.Defaults
	if list, ok := p.Payload.Get("initial_capabilities"); ok {
		var err error
		if caps, err = capability.ParseList(list); err != nil {
			return envelope.RefuseShape(err.Error())
		}
	}
	if !s.cfg.DropIn || s.cfg.InviteSubset { // the inviter must hold what it gives
		if _, fault := s.findBases(p, caps); fault != nil {
			s.auditRefusal(p.by, p.Kind, name, fault.Reason)
			return fault
		}
	}
	var invitation *Invitation // stays nil if the operator gets no notice
	if email := p.Payload.GetStr("email"); email != "" && s.gatewayCfg.InviteNotice != nil {
		invitation = &Invitation{Space: s.cfg.ID, Participant: name, Email: envelope.ToPrintable(email, 254), URL: s.connectionURL()}
	}
	token, fault := s.addInvitee(p.by, name, caps, invitation)
	if fault != nil {
		return fault
	}
	ack := func(fields ...wire.Member) { // the first field is the status
		p.direct = &envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindInviteAck, To: []string{p.by.id}, Correlation: []string{p.ID}, Payload: wire.Obj(fields...)}
		p.status, _ = fields[0].Value.Str()
		p.extra = fields[1:]
	}
	if token == "" {
		p.code = 409
		ack(wire.TextField("status", view.AlreadyExists), wire.TextField("participant_id", name), wire.TextField("message", "There is a participant with this id"))
		return nil
	}
	ack(wire.TextField("status", "created"), wire.TextField("participant_id", name), wire.TextField("token", token), wire.TextField("connection_url", s.connectionURL()))
	details := []wire.Member{wire.TextField("invited_by", p.by.id)}
	if reason := p.Payload.GetStr("reason"); reason != "" {
		details = append(details, wire.TextField("reason", reason))
	}
	p.afterSend = append(p.afterSend, func() { s.out.announcePresence("invited", s.members.byName[name].info(), p.by, details...) })
	return nil
}

// addInvitee stores a participant with a new token and, if invitation is not nil, the notice to the operator. The name
// may be that of a kicked participant, whose old tokens and grants stay invalid. If another participant has the name,
// addInvitee returns an empty token.
func (s *Space) addInvitee(inviter *member, name string, caps []capability.Capability, invitation *Invitation) (token string, fault *envelope.Refusal) {
	m := s.members.byName[name]
	switch {
	case m != nil && !m.record.Barred, m == nil && s.members.byID[name] != nil: // another participant has this name or id
		return "", nil
	case m == nil && len(s.members.byName) >= maxMembers:
		return "", envelope.RefuseWith(503, "unavailable", "The space is full")
	}
	token = newToken()
	isNew := m == nil
	if isNew {
		m = s.members.add(name, nil)
	}
	e := s.newEdit()
	rec := e.record(m)
	rec.Invited, rec.Barred, rec.Since = true, false, time.Now().UTC()
	rec.Own, rec.own = encodeAll(caps), caps
	rec.Key, rec.Grants, rec.RevokedRules = credential.HashOf(token), nil, nil
	if invitation != nil {
		e.more = append(e.more, s.gatewayCfg.InviteNotice(*invitation))
	}
	if s.gatewayCfg.KeepToken != nil { // before the commit, so that an invite never exists without its token
		if err := s.gatewayCfg.KeepToken(name, token); err != nil {
			s.gatewayCfg.Logger.Error("cannot write the token of an invited participant", "space", s.cfg.ID, "err", err)
			fault = envelope.RefuseStore()
		}
	}
	if fault == nil {
		fault = e.commit(s.auditEntry(inviter, envelope.KindInvite, name, "created"))
	}
	if fault != nil {
		if isNew {
			delete(s.members.byName, name)
		}
		return "", fault
	}
	return token, nil
}

// kick disconnects a participant and invalidates its tokens permanently (MEW-30).
func (s *Space) kick(p *submission) *envelope.Refusal {
	m := s.members.find(p.Payload.GetStr("participant_id"))
	if m == nil {
		return refuseUnknownParticipant()
	}
	if fault := s.protectOwner(m); fault != nil {
		return fault
	}
	e := s.newEdit()
	rec := e.record(m)
	rec.Barred, rec.Kicked, rec.Key = true, true, credential.Hash{}
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, "kicked")); fault != nil {
		return fault
	}
	p.afterSend = append(p.afterSend, func() { s.disconnect(m) })
	return nil
}

// disconnect closes the connection of a participant. If the participant had joined through its output log (MEW-D6), it
// leaves.
func (s *Space) disconnect(m *member) {
	if m.joinedByLog {
		m.joinedByLog = false
		s.out.removeGone()
		if m.session == nil {
			s.announceLeave(m)
		}
	}
	if ses := m.session; ses != nil {
		ses.conn.Close(envelope.CloseKicked, "kicked")
		s.endSession(ses)
	}
}

func (s *Space) connectionURL() string {
	return strings.TrimRight(s.gatewayCfg.PublicURL, "/") + "/ws?space=" + url.QueryEscape(s.cfg.ID)
}

// newToken returns 32 random bytes in base64url (MEW-D5).
func newToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}
