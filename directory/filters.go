package directory

import (
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What narrows a list beside capabilities, intents and words. Each family is bounded, so that a card's terms are.
const (
	ownerFamily     = "owner:"
	frameworkFamily = "framework:"
	locationFamily  = "at:"
	verifiedFamily  = "ok:"
	mailboxFamily   = "mailbox:" // and the owner of a card whose endpoint is its mailbox here

	maxOwnerWords     = 16
	maxFrameworkWords = 4
	maxLocationWords  = 24
	maxChecks         = 3
	maxAboutTerms     = maxOwnerWords + maxFrameworkWords + maxLocationWords + maxChecks + 1

	maxPrefixes = 3 // of a query
)

// Check is something that a directory finds out itself about a card (AM-61).
type Check string

const (
	KeyProven      Check = "key"      // the key was proven (AM-62), and is no replacement of the last 72 hours
	EndpointProven Check = "endpoint" // the endpoint returned the card (AM-63)
	Alive          Check = "alive"    // the endpoint answered when it was last asked
)

var checks = []Check{KeyProven, EndpointProven, Alive}

// about returns the terms of a card for the filters owner, framework and location. owner.contact is none of them:
// nobody is found by an address, also where the owner published it.
func about(c wire.Card) []string {
	var list []string
	add := func(family string, limit int, texts ...string) {
		for _, w := range indexed(strings.Join(texts, " \n "), limit) {
			list = append(list, family+w)
		}
	}
	add(ownerFamily, maxOwnerWords, c.OwnerName)
	add(frameworkFamily, maxFrameworkWords, c.Metadata.GetStr("agent_framework"), c.Metadata.GetStr("framework"))
	availability, _ := c.Tree.Get("availability")
	places := []string{zone(c.Metadata.GetStr("timezone")), zone(availability.GetStr("timezone"))}
	for _, key := range []string{"location", "city", "region", "country"} {
		places = append(places, c.Metadata.GetStr(key))
		if v, ok := c.Metadata.Get(key); ok && v.Kind() == wire.Object {
			for _, m := range v.Members() {
				if s, ok := m.Value.Str(); ok {
					places = append(places, s)
				}
			}
		}
	}
	add(locationFamily, maxLocationWords, places...)
	return list
}

// zone writes the name of a time zone as words: America/Los_Angeles is found by "los angeles".
func zone(name string) string { return strings.NewReplacer("/", " ", "_", " ").Replace(name) }

// narrow adds the filters of q that are neither capability, intent nor text. possible is false where one of them
// cannot match any card. The error is a *[wire.Error].
func (q Query) narrow(to *store.CardQuery) (possible bool, err error) {
	possible = true
	for _, f := range []struct{ family, text, name string }{
		{ownerFamily, q.Owner, "owner"}, {frameworkFamily, q.Framework, "framework"}, {locationFamily, zone(q.Location), "location"},
	} {
		if len(f.text) > maxText {
			return false, wire.ErrQuery.At(f.name + " must be at most 256 bytes")
		}
		whole, last, n := wanted(f.text)
		switch {
		case n > maxWords:
			return false, wire.ErrQuery.At(f.name + " must have at most 8 words")
		case n > 0:
			to.All = append(to.All, with(f.family, append(whole, last))...)
		case f.text != "":
			possible = false // a text without a word
		}
	}
	for _, check := range q.Verified {
		if !slices.Contains(checks, check) {
			return false, wire.ErrQuery.At("verified must be key, endpoint or alive")
		}
		to.All = append(to.All, verifiedFamily+string(check))
	}
	if len(q.Prefixes) > maxPrefixes {
		return false, wire.ErrQuery.At("at most 3 capability_prefix")
	}
	for _, prefix := range q.Prefixes {
		to.Prefixes = append(to.Prefixes, capFamily+prefix)
	}
	slices.Sort(to.Prefixes)
	to.Prefixes = slices.Compact(to.Prefixes)
	return possible, nil
}

// termed returns the terms of a card with those of what was found out about it.
func (m meta) termed(terms []string, now time.Time) []string {
	list := slices.DeleteFunc(slices.Clone(terms), func(t string) bool { return strings.HasPrefix(t, verifiedFamily) })
	for _, check := range m.passed(now) {
		list = append(list, verifiedFamily+string(check))
	}
	slices.Sort(list)
	return list
}
