package message

import (
	"cmp"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/personal"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Class is a classification in its short form, which messages use.
type Class string

// The classes (MS-36).
const (
	Public       Class = "pub"
	Internal     Class = "int"
	Confidential Class = "conf"
	PII          Class = "pii"
	Secret       Class = "sec"
)

var classNames = map[string]Class{
	"public": Public, "internal": Internal, "confidential": Confidential, "secret": Secret,
	"pub": Public, "int": Internal, "conf": Confidential, "pii": PII, "sec": Secret,
}

// ParseClass returns the class with a short or long name, or "" for another text.
func ParseClass(text string) Class { return classNames[text] }

// Classes lists the classes that we accept.
func Classes() []Class { return []Class{Public, Internal, Confidential, PII, Secret} }

// IsBoxed reports whether messages of the class must be encrypted (MS-37).
func (c Class) IsBoxed() bool { return c == Confidential || c == PII || c == Secret }

// ForAnswer returns the class of an answer. c is the class that the answer has by itself, and question is the class of
// the message that it answers. An internal answer to a confidential or secret message takes the class of the message.
func (c Class) ForAnswer(question Class) Class {
	if c == Internal && (question == Confidential || question == Secret) {
		return question
	}
	return c
}

// class returns the member cls. If optional is set, a message without cls is internal.
func (r *reader) class(optional bool) Class {
	if !r.has("cls") && optional {
		return Internal
	}
	c := classNames[r.text("cls")]
	r.check(c != "", "cls", "must be pub, int, conf, pii or sec")
	return c
}

// PIIMeta describes the personal data in a message and the consent to it.
type PIIMeta struct {
	Types      []string
	GrantedBy  string
	Purpose    string
	Proof      string
	Expires    time.Time // zero: no expiry
	Scope      []string  // the types that the consent covers; empty: it names none, and covers all
	MaskFields []string  // the members to mask; see [PIIMeta.Mask]
}

func (r *reader) piiMeta() *PIIMeta {
	v, ok := r.opt("pii_meta", wire.Object)
	if !ok {
		return nil
	}
	sub := r.at("pii_meta", v)
	m := &PIIMeta{Types: sub.texts("types"), MaskFields: sub.optTexts("mask_fields")}
	sub.check(len(m.Types) > 0, "types", "must have at least one entry")
	for _, t := range m.Types {
		sub.check(slices.Contains(personal.DataTypes(), t), "types", "must contain only types of the schema")
	}
	if c, ok := sub.opt("consent", wire.Object); ok {
		in := sub.at("consent", c)
		m.GrantedBy, m.Purpose, m.Proof = in.name("granted_by"), in.name("purpose"), in.text("proof")
		m.Expires, m.Scope = in.optMillis("expires"), in.optTexts("scope")
		in.check(len(m.Scope) > 0 || !in.has("scope"), "scope", "must have at least one entry")
	}
	return m
}

// Merge returns other with the types of m added. other describes a later part of the same message, and its consent
// replaces that of m. If m and other name different fields to mask, the result names none, so that the types decide
// what is masked. If one of them is nil, Merge returns the other one.
func (m *PIIMeta) Merge(other *PIIMeta) *PIIMeta {
	if m == nil || other == nil {
		return cmp.Or(m, other)
	}
	both := *other
	both.Types = slices.Clone(m.Types)
	for _, t := range other.Types {
		if !slices.Contains(both.Types, t) {
			both.Types = append(both.Types, t)
		}
	}
	if !slices.Equal(m.MaskFields, other.MaskFields) {
		both.MaskFields = nil
	}
	return &both
}

// CheckCoverage returns an error if the consent is missing, has expired, or does not cover the types that were found.
func (m *PIIMeta) CheckCoverage(found []string, now time.Time) *Error {
	refuse := func(reason string) *Error {
		e := FailAt(CodeConsent, "pii_meta", reason)
		e.Types = found
		return e
	}
	switch {
	case m == nil:
		return refuse("is required with cls pii")
	case m.GrantedBy == "" || m.Purpose == "" || m.Proof == "":
		return refuse("names no consent")
	case !m.Expires.IsZero() && !now.Before(m.Expires):
		return refuse("the consent has expired")
	}
	for _, t := range found {
		if !slices.Contains(m.Types, t) || len(m.Scope) > 0 && !slices.Contains(m.Scope, t) {
			return refuse("the consent does not cover every type that was found")
		}
	}
	return nil
}

func (m *PIIMeta) value() wire.Value {
	consent := wire.Obj(wire.TextField("granted_by", m.GrantedBy), wire.TextField("purpose", m.Purpose), wire.TextField("proof", m.Proof))
	if !m.Expires.IsZero() {
		consent = consent.With("expires", wire.Int(m.Expires.UnixMilli()))
	}
	if len(m.Scope) > 0 {
		consent = consent.With("scope", wire.Texts(m.Scope))
	}
	v := wire.Obj(wire.Field("types", wire.Texts(m.Types)), wire.Field("consent", consent))
	if len(m.MaskFields) > 0 {
		v = v.With("mask_fields", wire.Texts(m.MaskFields))
	}
	return v
}
