package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// corpus makes the cards of a directory. A card has about 730 bytes, one to three of 200 capabilities, one to four
// intents, and words from a vocabulary with a long tail. Corpora with the same prefix make the same card from the same
// number.
type corpus struct {
	prefix string
	keys   []keyPair
}

type keyPair struct {
	private *signing.PrivateKey
	text    string // the public key, as on a card
}

// corpusKeys is the number of keys that the cards share, because a key for each card would take long to make.
const corpusKeys = 64

const (
	capabilities = 200
	vocabulary   = 200_000 // words
)

func newCorpus(prefix string) *corpus {
	c := &corpus{prefix: prefix}
	for i := range corpusKeys {
		c.keys = append(c.keys, newKey(fmt.Sprintf("%s %d", prefix, i)))
	}
	return c
}

func newKey(name string) keyPair {
	seed := sha256.Sum256([]byte("meshbench " + name))
	k := signing.NewEd25519FromSeed(seed[:])
	return keyPair{k, k.PublicText()}
}

func (c *corpus) id(i int) wire.AgentID { return wire.AgentID(fmt.Sprintf("am_%s_%08d", c.prefix, i)) }

func (c *corpus) card(i int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), 7)) // the second seed may be any constant
	zipf := rand.NewZipf(rng, 1.2, 8, vocabulary)
	words := func(n int) string {
		list := make([]string, n)
		for k := range list {
			list[k] = wordOf(zipf.Uint64())
		}
		return strings.Join(list, " ")
	}
	var caps, intents []string
	for range 1 + rng.IntN(3) {
		caps = append(caps, capability(min(rng.IntN(capabilities), rng.IntN(capabilities))))
	}
	for _, intent := range wire.StandardIntents()[:1+rng.IntN(4)] {
		intents = append(intents, string(intent))
	}
	return cardJSON(c.id(i), words(2), words(10)+". "+strings.Repeat("It keeps promises. ", 15), endpointOf(c.id(i)), c.keys[i%len(c.keys)].text, caps, intents)
}

// endpointOf returns an endpoint that does not exist.
func endpointOf(id wire.AgentID) string {
	return "https://" + strings.ReplaceAll(string(id), "_", "-") + ".example/agentmesh"
}

func cardJSON(id wire.AgentID, name, description, endpoint, key string, caps, intents []string) []byte {
	return wire.Obj(
		wire.TextField("agentmesh", wire.Version),
		wire.TextField("agent_id", string(id)),
		wire.TextField("name", name),
		wire.TextField("description", description),
		wire.TextField("endpoint", endpoint),
		wire.TextField("public_key", key),
		wire.Field("capabilities", wire.Texts(caps)),
		wire.Field("intents", wire.Texts(intents)),
	).JSON()
}

// capability returns the name of a capability. Capabilities with small numbers are on more cards.
func capability(n int) string { return "skill-" + strconv.Itoa(n) }

// wordOf returns the n-th most frequent word. The words share prefixes as real words do.
func wordOf(n uint64) string {
	return strconv.FormatUint(n*2654435761%(1<<32)+36, 36) // the factor scatters the numbers (Knuth)
}
