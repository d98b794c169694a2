package gateway

import (
	"crypto/rand"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Invitation is what the operator is told of an invite that named an address (MEW-28). The token is not in it: the
// inviter alone has it. Participant and Email are the inviter's words, made printable.
type Invitation struct {
	Space, Participant, Email, URL string
}

// invite makes a participant and tells the inviter alone how it gets in (MEW-27).
func (s *Space) invite(p *post) *envelope.Refusal {
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
	if !s.cfg.DropIn || s.cfg.InviteSubset {
		if _, fault := s.mayGive(p, caps); fault != nil {
			s.auditRefused(p.by, p.Kind, name, fault.Reason)
			return fault
		}
	}
	var tell *Invitation
	if email := p.Payload.GetStr("email"); email != "" && s.gate.Invited != nil {
		tell = &Invitation{Space: s.cfg.ID, Participant: name, Email: envelope.ToPrintable(email, 254), URL: s.connectionURL()}
	}
	token, fault := s.admit(p.by, name, caps, tell)
	if fault != nil {
		return fault
	}
	ack := func(members ...wire.Member) {
		p.direct = &envelope.Outgoing{From: envelope.FromSystem, Kind: envelope.KindInviteAck, To: []string{p.by.runtime}, Correlation: []string{p.ID}, Payload: wire.Obj(members...)}
		p.status, p.extra = "", members[1:]
		p.status, _ = members[0].Value.Str()
	}
	if token == "" {
		p.code = 409
		ack(wire.TextField("status", "already_exists"), wire.TextField("participant_id", name), wire.TextField("message", "There is a participant with this id"))
		return nil
	}
	link := s.connectionURL()
	ack(wire.TextField("status", "created"), wire.TextField("participant_id", name), wire.TextField("token", token), wire.TextField("connection_url", link))
	about := []wire.Member{wire.TextField("invited_by", p.by.runtime)}
	if reason := p.Payload.GetStr("reason"); reason != "" {
		about = append(about, wire.TextField("reason", reason))
	}
	p.then = append(p.then, func() { s.out.announcePresence("invited", s.members.byName[name].info(), p.by, about...) })
	return nil
}

// admit makes a participant with a token of its own, durably. The token is empty where the name is taken.
func (s *Space) admit(who *member, name string, caps []capability.Capability, tell *Invitation) (token string, fault *envelope.Refusal) {
	m := s.members.byName[name]
	switch {
	case m != nil && !m.lasting.Barred, m == nil && s.members.byID[name] != nil:
		return "", nil
	case m == nil && len(s.members.byName) >= maxMembers:
		return "", envelope.RefuseWith(503, "unavailable", "The space is full")
	}
	token = newToken()
	fresh := m == nil
	if fresh {
		m = s.members.add(name, nil)
	}
	e := s.edit()
	l := e.of(m)
	l.Invited, l.Barred, l.Since = true, false, time.Now().UTC()
	l.Own, l.own = rawOf(caps), caps
	l.Tokens, l.Grants, l.Masks = []string{credential.HashOf(token).String()}, nil, nil
	if tell != nil {
		e.more = append(e.more, s.gate.Invited(*tell))
	}
	fault = e.commit(s.auditEntry(who, envelope.KindInvite, name, "created"))
	if fault == nil && s.tokens.keep != nil {
		if err := s.tokens.keep(name, token); err != nil {
			s.gate.Logger.Error("write the token of an invited participant", "space", s.cfg.ID, "err", err)
			fault = envelope.RefuseStore()
		}
	}
	if fault != nil {
		if fresh {
			delete(s.members.byName, name)
		}
		return "", fault
	}
	s.tokens.add(credential.HashOf(token), s.cfg.ID, name)
	return token, nil
}

// kick puts a participant out and bars its tokens (MEW-30).
func (s *Space) kick(p *post) *envelope.Refusal {
	m := s.members.find(p.Payload.GetStr("participant_id"))
	if m == nil {
		return refuseRecipient()
	}
	if fault := s.sparing(m); fault != nil {
		return fault
	}
	e := s.edit()
	l := e.of(m)
	l.Barred = true
	for _, h := range s.tokens.of(s.cfg.ID, m.name) {
		if !slices.Contains(l.Dead, h) {
			l.Dead = append(l.Dead, h)
		}
	}
	l.Tokens = nil
	if fault := e.commit(s.auditEntry(p.by, p.Kind, m.name, "kicked")); fault != nil {
		return fault
	}
	p.then = append(p.then, func() { s.putOut(m) })
	return nil
}

// putOut ends whatever connects a participant.
func (s *Space) putOut(m *member) {
	if m.virtualOn {
		m.virtualOn = false
		s.out.reseat()
		if m.session == nil {
			s.announceLeave(m)
		}
	}
	if ses := m.session; ses != nil {
		ses.conn.Close(envelope.CloseKicked, "kicked")
		s.leaveLocked(ses)
	}
}

// connectionURL is where an invited participant connects.
func (s *Space) connectionURL() string {
	return strings.TrimRight(s.gate.PublicURL, "/") + "/ws?space=" + url.QueryEscape(s.cfg.ID)
}

// newToken returns 32 random bytes in base64url (MEW-D5).
func newToken() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}
