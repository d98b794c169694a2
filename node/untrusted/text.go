// Package untrusted has the type of values that a peer chose freely.
package untrusted

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Text is a value that a peer chose freely, such as an id, a code or an intent. It may read like an instruction, so a
// model sees it only inside the marked part of a text, or as a word of ours: [Text.Handle], [Text.OneOf] (THREATS 43).
type Text string

// random is the form of the ids that this program makes, which says nothing to a reader.
var random = regexp.MustCompile(`^[a-z]{1,5}_[0-9a-f]{12,64}$`)

// Handle returns what stands for an id outside of the marked part: a random id itself, or else a hash of the id and of
// its author.
func (t Text) Handle(author string) string {
	if t == "" || random.MatchString(string(t)) {
		return string(t)
	}
	sum := sha256.Sum256([]byte(author + "\x00" + string(t)))
	return "ref_" + hex.EncodeToString(sum[:8])
}

// Agent returns what stands for the id of an agent outside of the marked part: the id itself if it is derived from a key
// or random, or else a hash of it.
func Agent(id wire.AgentID) string {
	if id.HasDerivedShape() {
		return string(id)
	}
	return Text(id).Handle("")
}

// OneOf returns the text if it is one of the known words, or else other.
func (t Text) OneOf(known []string, other string) string {
	if slices.Contains(known, string(t)) {
		return string(t)
	}
	return other
}
