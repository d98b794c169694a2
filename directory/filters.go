package directory

import (
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/words"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A term is a key under which the index lists a card, such as "owner:smith"; its family is its beginning. These are the
// families for the filters other than capability, intent and text, and the most terms of each for one card.
const (
	ownerFamily     = "owner:"
	frameworkFamily = "framework:"
	locationFamily  = "at:"
	verifiedFamily  = "ok:"

	maxOwnerWords     = 16
	maxFrameworkWords = 4
	maxLocationWords  = 24
	maxChecks         = 3
	maxFilterTerms    = maxOwnerWords + maxFrameworkWords + maxLocationWords + maxChecks + 2 // 2: kind of entry, mailbox

	maxPrefixes = 3 // in a query
)

// filterTerms returns the terms of a card for the filters owner, framework and location, and for its kind of entry in
// ARD. It leaves out owner.contact: no search finds a card by an address.
func filterTerms(c wire.Card) []string {
	list := []string{entryTerm(c.Tree)}
	add := func(family string, limit int, texts ...string) {
		for _, w := range words.Index(strings.Join(texts, " \n "), limit) {
			list = append(list, family+w)
		}
	}
	add(ownerFamily, maxOwnerWords, c.OwnerName)
	add(frameworkFamily, maxFrameworkWords, c.Metadata.GetStr("agent_framework"), c.Metadata.GetStr("framework"))
	availability, _ := c.Tree.Get("availability")
	places := []string{zoneWords(c.Metadata.GetStr("timezone")), zoneWords(availability.GetStr("timezone"))}
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

// zoneWords writes the name of a time zone as words, so that "los angeles" finds America/Los_Angeles.
var zoneWords = strings.NewReplacer("/", " ", "_", " ").Replace

// addFilters adds the filters of q other than capability, intent and text. The error is a *[wire.Error].
func (q Query) addFilters(to *store.CardQuery) error {
	for _, f := range []struct{ family, text, name string }{
		{ownerFamily, q.Owner, "owner"}, {frameworkFamily, q.Framework, "framework"}, {locationFamily, zoneWords(q.Location), "location"},
	} {
		if len(f.text) > maxText {
			return wire.ErrQuery.At(f.name + " must be at most 256 bytes")
		}
		whole, last, n := words.Query(f.text)
		switch {
		case n > maxWords:
			return wire.ErrQuery.At(f.name + " must have at most 8 words")
		case n > 0:
			to.All = append(to.All, newTerms(f.family, append(whole, last))...)
		case f.text != "":
			return wire.ErrQuery.At(f.name + withoutWord)
		}
	}
	for _, check := range q.Verified {
		if !slices.Contains(listing.Checks, check) {
			return wire.ErrQuery.At("verified must be key, endpoint or alive")
		}
		to.All = append(to.All, verifiedFamily+string(check))
	}
	if len(q.Prefixes) > maxPrefixes {
		return wire.ErrQuery.At("capability_prefix may be given at most 3 times")
	}
	to.Prefixes = newTerms(capFamily, q.Prefixes)
	return nil
}

// replaceCheckTerms returns terms with those of verifiedFamily replaced by the terms for the checks that hold at now.
func replaceCheckTerms(m listing.Meta, terms []string, now time.Time) []string {
	list := slices.DeleteFunc(slices.Clone(terms), func(t string) bool { return strings.HasPrefix(t, verifiedFamily) })
	for _, check := range m.Checks(now) {
		list = append(list, verifiedFamily+string(check))
	}
	slices.Sort(list)
	return list
}
