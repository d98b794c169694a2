package discovery

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of a request.
const (
	maxBody    = 32 << 10
	maxDepth   = 8
	maxNodes   = 1000
	maxPage    = 100
	maxPerKey  = 16   // values of one key of a filter
	maxFilter  = 2048 // bytes of the filter of a list
	searchPage = 10   // entries on a page, if the request does not say
	listPage   = 20
)

// request is a search, or a request for a list.
type request struct {
	text       string
	filter     map[string][]string
	federation string // auto, referrals, none
	size       int
	token      string
}

var filterKeys = []string{"type", "tags", "capabilities", "publisher", "trustManifest.attestations.type"}

var errKeys = wire.ErrQuery.At("a filter may have only the keys " + strings.Join(filterKeys, ", "))

// parseSearch reads the body of a search. It refuses unknown members, because a search that ignored one would find too
// much. The error is or wraps a *[wire.Error].
func parseSearch(body []byte) (request, error) {
	v, err := wire.ParseLimits(body, maxDepth, maxNodes)
	if err != nil {
		return request{}, wire.ErrSyntax.Because(err)
	}
	r := request{federation: "auto", size: searchPage}
	query, hasQuery := v.Get("query")
	_, hasText := query.Get("text")
	switch {
	case v.Kind() != wire.Object || !hasQuery || query.Kind() != wire.Object || !hasText:
		return request{}, wire.ErrQuery.At("a search needs query.text")
	case !hasOnly(v, "query", "federation", "pageSize", "pageToken"):
		return request{}, wire.ErrQuery.At("a search may have only the members query, federation, pageSize and pageToken")
	case !hasOnly(query, "text", "filter", "@context"):
		return request{}, wire.ErrQuery.At("query may have only the members text, filter and @context")
	}
	if err := errors.Join(setText(&r.text, query, "text"), setText(&r.federation, v, "federation"), setText(&r.token, v, "pageToken")); err != nil {
		return request{}, err
	}
	if !slices.Contains([]string{"auto", "referrals", "none"}, r.federation) {
		return request{}, wire.ErrQuery.At("federation must be auto, referrals or none")
	}
	if size, ok := v.Get("pageSize"); ok {
		digits, isNumber := size.Num()
		if r.size, err = parseSize(digits); err != nil || !isNumber {
			return request{}, errSize
		}
	}
	filter, ok := query.Get("filter")
	if ok && filter.Kind() != wire.Object {
		return request{}, wire.ErrQuery.At("query.filter must be an object")
	}
	r.filter, err = parseFilter(filter)
	return r, err
}

// setText sets *dst to the string at key in v. Without that key, it does nothing.
func setText(dst *string, v wire.Value, key string) error {
	value, ok := v.Get(key)
	if !ok {
		return nil
	}
	if *dst, ok = value.Str(); !ok {
		return wire.ErrQuery.At("text, federation and pageToken must be strings")
	}
	return nil
}

func hasOnly(v wire.Value, keys ...string) bool {
	return !slices.ContainsFunc(v.Members(), func(m wire.Member) bool { return !slices.Contains(keys, m.Key) })
}

// parseFilter reads the filter of a search. The value of each key is a string or a list of strings.
func parseFilter(v wire.Value) (map[string][]string, error) {
	filter := map[string][]string{}
	for _, m := range v.Members() {
		if !slices.Contains(filterKeys, m.Key) {
			return nil, errKeys
		}
		filter[m.Key] = []string{}
		values := []wire.Value{m.Value}
		if m.Value.Kind() == wire.Array {
			values = slices.Collect(m.Value.Elems())
		}
		for _, value := range values {
			text, ok := value.Str()
			if !ok || len(values) > maxPerKey {
				return nil, wire.ErrQuery.At("the value of a filter key must be a string or a list of at most 16 strings")
			}
			filter[m.Key] = append(filter[m.Key], text)
		}
	}
	return filter, nil
}

var errSize = wire.ErrQuery.At("pageSize must be 1 to 100")

func parseSize(digits string) (int, error) {
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > maxPage {
		return 0, errSize
	}
	return n, nil
}

// parseListFilter reads the filter of a list: conditions such as type = 'a,b', joined by AND. One of the quoted values
// must match.
func parseListFilter(text string) (map[string][]string, error) {
	filter := map[string][]string{}
	if len(text) > maxFilter {
		return nil, wire.ErrQuery.At("filter is too long")
	}
	for rest := strings.TrimSpace(text); rest != ""; {
		key, after, ok := strings.Cut(rest, "=")
		key, after = strings.TrimSpace(key), strings.TrimSpace(after)
		if key == "publisherId" { // the name of the key in lists
			key = "publisher"
		}
		if !ok || after == "" || after[0] != '\'' && after[0] != '"' {
			return nil, wire.ErrQuery.At("filter must be conditions such as type = 'a,b', joined by AND")
		}
		values, after, ok := strings.Cut(after[1:], after[:1]) // after[:1] is the quote
		list := strings.Split(values, ",")
		switch {
		case !ok || filter[key] != nil || len(list) > maxPerKey:
			return nil, wire.ErrQuery.At("filter has an open quote, a key twice, or a key with more than 16 values")
		case !slices.Contains(filterKeys, key):
			return nil, errKeys
		}
		for _, value := range list {
			filter[key] = append(filter[key], strings.TrimSpace(value))
		}
		if rest = strings.TrimSpace(after); rest == "" {
			break
		}
		if rest, ok = strings.CutPrefix(rest, "AND "); !ok || strings.TrimSpace(rest) == "" {
			return nil, wire.ErrQuery.At("conditions of a filter must be joined by AND")
		}
	}
	return filter, nil
}

// newSearch translates r into a Search of the directory. possible is false if no entry can match.
func (s *Service) newSearch(r request) (q Search, possible bool) {
	q = Search{
		Text: r.text, Limit: r.size, Cursor: r.token,
		Capabilities: r.filter["capabilities"], Intents: r.filter["tags"],
	}
	for key, values := range r.filter {
		if len(values) == 0 {
			return q, false
		}
		switch key {
		case "type":
			for kind, entryType := range map[string]string{EntryA2A: TypeA2A, EntryMesh: TypeMesh} {
				if slices.Contains(values, entryType) {
					q.Entry = append(q.Entry, kind)
				}
			}
			slices.Sort(q.Entry)
			if len(q.Entry) == 0 {
				return q, false
			}
		case "publisher":
			if !slices.ContainsFunc(values, func(host string) bool { return strings.EqualFold(host, s.host) }) {
				return q, false
			}
		case "trustManifest.attestations.type":
			for _, a := range attestations {
				if slices.Contains(values, a.kind) {
					q.Checks = append(q.Checks, a.check)
				}
			}
			if len(q.Checks) == 0 {
				return q, false
			}
		}
	}
	if len(q.Entry) == 2 {
		q.Entry = nil // every agent has one of the two
	}
	return q, true
}
