package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mew/capability"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsMembers holds what lasts of participants, by "space/name" (MEW-Q5).
const nsMembers = "mew-members"

// lasting is what of a participant survives disconnect and restart (MEW-29). One that is shared is never changed.
type lasting struct {
	Space   string            `json:"space"`
	Name    string            `json:"name"`
	Invited bool              `json:"invited,omitempty"`
	Since   time.Time         `json:"since,omitzero"` // may read the history from here
	Own     []json.RawMessage `json:"capabilities,omitempty"`
	Tokens  []string          `json:"tokens,omitempty"` // hashes
	Grants  []*grant          `json:"grants,omitempty"`
	Masks   []string          `json:"masks,omitempty"` // own capabilities that were revoked, by their rule
	Barred  bool              `json:"barred,omitempty"`
	Dead    []string          `json:"dead,omitempty"` // hashes of tokens that are no good any more

	own []capability.Capability
}

// grant is capabilities that a participant gave to another (MEW-21, MEW-25).
type grant struct {
	Key  string            `json:"key"` // ours, unique
	ID   string            `json:"id"`  // of the envelope
	By   string            `json:"by"`  // name
	At   time.Time         `json:"at"`
	Caps []json.RawMessage `json:"capabilities"`
	Rest []string          `json:"rests_on"` // for each capability, what of the granter's it rests on

	caps []capability.Capability
}

// without returns the grant with only the capabilities that keep says, nil where none is left.
func (g *grant) without(keep func(i int) bool) *grant {
	out := &grant{Key: g.Key, ID: g.ID, By: g.By, At: g.At}
	for i := range g.caps {
		if keep(i) {
			out.Caps = append(out.Caps, g.Caps[i])
			out.Rest = append(out.Rest, g.Rest[i])
			out.caps = append(out.caps, g.caps[i])
		}
	}
	if len(out.caps) == 0 {
		return nil
	}
	return out
}

func rawOf(list []capability.Capability) []json.RawMessage {
	out := make([]json.RawMessage, len(list))
	for i, c := range list {
		out[i] = c.Value().JSON()
	}
	return out
}

func compiled(list []json.RawMessage) ([]capability.Capability, error) {
	out := make([]capability.Capability, len(list))
	for i, raw := range list {
		v, err := wire.ParseForeign(raw, envelope.MaxDepth, envelope.MaxValues)
		if err != nil {
			return nil, err
		}
		if out[i], err = capability.Parse(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func readLasting(body []byte) (*lasting, error) {
	l := &lasting{}
	if err := json.Unmarshal(body, l); err != nil {
		return nil, err
	}
	var err error
	if l.own, err = compiled(l.Own); err != nil {
		return nil, err
	}
	for _, g := range l.Grants {
		if g.caps, err = compiled(g.Caps); err != nil {
			return nil, err
		}
		if len(g.Rest) != len(g.caps) {
			return nil, errors.New("a grant does not say what it rests on")
		}
	}
	return l, nil
}

func (l *lasting) clone() *lasting {
	c := *l
	c.Grants, c.Masks = slices.Clone(l.Grants), slices.Clone(l.Masks)
	c.Tokens, c.Dead = slices.Clone(l.Tokens), slices.Clone(l.Dead)
	return &c
}

// edit is a change of what lasts: all of it is durable before any of it acts (MEW-Q5).
type edit struct {
	s       *Space
	order   []*member
	changed map[*member]*lasting
	more    []store.Change // of others, in the same unit
}

func (s *Space) edit() *edit { return &edit{s: s, changed: make(map[*member]*lasting)} }

// of returns what lasts of m, to be changed.
func (e *edit) of(m *member) *lasting {
	if l := e.changed[m]; l != nil {
		return l
	}
	l := m.lasting.clone()
	e.changed[m] = l
	e.order = append(e.order, m)
	return l
}

// see returns what lasts of m after the changes so far.
func (e *edit) see(m *member) *lasting {
	if l := e.changed[m]; l != nil {
		return l
	}
	return m.lasting
}

const storeTimeout = 10 * time.Second

// commit stores the change with its lines of the audit log in one unit, and lets it act.
func (e *edit) commit(entries ...acl.AuditEntry) *envelope.Refusal {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	changes := slices.Clone(e.more)
	for _, m := range e.order {
		body, err := json.Marshal(e.changed[m])
		if err != nil {
			e.s.gate.Logger.Error("encode a participant", "space", e.s.cfg.ID, "err", err)
			return envelope.RefuseStore()
		}
		changes = append(changes, store.Change{IfRev: store.Any, Record: store.Record{
			NS: nsMembers, Key: e.s.cfg.ID + "/" + m.name, Body: body, Terms: []string{"space:" + hashName(e.s.cfg.ID)},
		}})
	}
	for _, entry := range entries {
		changes = append(changes, e.s.gate.Audit.Change(entry))
	}
	if err := e.s.gate.Records.Apply(ctx, changes, time.Now()); err != nil {
		e.s.gate.Logger.Error("store participants", "space", e.s.cfg.ID, "err", err)
		return envelope.RefuseStore()
	}
	for _, m := range e.order {
		m.lasting = e.changed[m]
		m.recompute(e.s.cfg.DropIn)
	}
	return nil
}

// hashName makes a term of a name of any length.
func hashName(s string) string { return credential.HashOf(s).Name() }

// load reads what lasts of the participants of the space.
func (s *Space) load(ctx context.Context) error {
	after, now := "", time.Now()
	for {
		page, err := s.gate.Records.List(ctx, nsMembers, "space:"+hashName(s.cfg.ID), after, 500, now)
		if err != nil {
			return fmt.Errorf("read the participants of space %s: %w", s.cfg.ID, err)
		}
		for _, rec := range page.Records {
			l, err := readLasting(rec.Body)
			if err != nil {
				return fmt.Errorf("read participant %s: %w", rec.Key, err)
			}
			if l.Space != s.cfg.ID {
				continue
			}
			m := s.members.byName[l.Name]
			switch {
			case m == nil && l.Invited:
				m = s.members.add(l.Name, nil)
			case m == nil:
				continue // no longer configured
			}
			m.lasting = l
			m.recompute(s.cfg.DropIn)
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// auditEntry is the line for an operation on the space (MEW-31): who, whom, what, result.
func (s *Space) auditEntry(who *member, kind, whom, result string) acl.AuditEntry {
	note := kind
	if whom != "" {
		note += " " + envelope.ToPrintable(whom, envelope.MaxName)
	}
	by := acl.ByRule
	subject := "mew-space:" + s.cfg.ID
	if who != nil {
		subject += "/" + who.name
	} else {
		by = "owner"
	}
	return acl.AuditEntry{At: time.Now(), Kind: "mew", Subject: subject, By: by, Rule: "mew.space", Note: note + ": " + result}
}

// auditRefused records an operation that was refused. It has no unit of its own to travel with.
func (s *Space) auditRefused(who *member, kind, whom, result string) {
	s.gate.Audit.Count(s.auditEntry(who, kind, whom, result))
}
