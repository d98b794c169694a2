package capability

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/wire"
)

// parseJSON parses a JSON text.
func parseJSON(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(text), 64, 1<<17)
	if err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	return v
}

// parseCap parses a capability from JSON or a bare kind.
func parseCap(t testing.TB, s string) Capability {
	t.Helper()
	v := wire.Text(s)
	if strings.HasPrefix(s, "{") {
		v = parseJSON(t, s)
	}
	c, err := Parse(v)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return c
}

// allowsText reports whether a capability allows an envelope with this kind and payload.
func allowsText(t testing.TB, capability, kind, payload string, to ...string) bool {
	t.Helper()
	c := parseCap(t, capability)
	var p wire.Value
	if payload != "" {
		p = parseJSON(t, payload)
	}
	var names []Addressee
	for _, id := range to {
		names = append(names, Addressee{id, id})
	}
	return FirstAllowing([]*Capability{&c}, kind, names, p) != nil
}

// TestPatterns checks a match and a mismatch for every form of pattern (MEW-55).
func TestPatterns(t *testing.T) {
	call := func(payload string) string { return `{"kind":"mcp/request","payload":` + payload + `}` }
	long := strings.Repeat("a", maxRegexpText)
	for _, tt := range []struct {
		capability, kind, payload string
		want                      bool
	}{
		// kind
		{`{"kind":"chat"}`, "chat", ``, true},
		{`{"kind":"chat"}`, "chat/cancel", ``, false},
		{`{"kind":"chat/*"}`, "chat", ``, false},
		{`{"kind":"mcp/*"}`, "mcp/request", ``, true},
		{`{"kind":"mcp*"}`, "mcp/request", ``, false},
		{`{"kind":"mcp/**"}`, "mcp/a/b", ``, true},
		{`{"kind":"mcp/*"}`, "mcp/a/b", ``, false},
		{`{"kind":"*"}`, "a/b/c", ``, true},
		{`{"kind":"*"}`, "system/register", ``, false},
		{`{"kind":"*/list"}`, "tools/list", ``, true},
		{`{"kind":["chat","mcp/*"]}`, "mcp/request", ``, true},
		{`{"kind":["chat","mcp/*"]}`, "stream/request", ``, false},
		{`{"kind":[]}`, "chat", ``, false},
		{`{"kind":"!chat"}`, "mcp/request", ``, true},
		{`{"kind":"!chat"}`, "chat", ``, false},
		{`{"kind":"/^mcp\\/re/"}`, "mcp/request", ``, true},
		{`{"kind":"/^mcp\\/re/"}`, "mcp/proposal", ``, false},
		{`{"kind":"c?at"}`, "chat", ``, true},
		{`{"kind":"chat?"}`, "chat/", ``, false},
		{`{"kind":"ch[a]t"}`, "chat", ``, false},
		{`{"kind":"ch{a,b}t"}`, "chat", ``, false},
		// strings
		{call(`{"method":"tools/call"}`), "mcp/request", `{"method":"tools/call"}`, true},
		{call(`{"method":"tools/*"}`), "mcp/request", `{"method":"tools/call"}`, true},
		{call(`{"method":"tools/*"}`), "mcp/request", `{"method":"tools/a/b"}`, false},
		{call(`{"method":"*"}`), "mcp/request", `{"method":"a/b"}`, true},
		{call(`{"method":"*"}`), "mcp/request", `{"method":1}`, false},
		{call(`{"method":"!tools/call"}`), "mcp/request", `{"method":"tools/list"}`, true},
		{call(`{"method":"!tools/call"}`), "mcp/request", `{"method":"tools/call"}`, false},
		{call(`{"method":"!tools/call"}`), "mcp/request", `{}`, false},
		{call(`{"method":"!tools/call"}`), "mcp/request", `{"method":null}`, false},
		{call(`{"method":"!tools/call"}`), "mcp/request", ``, false},
		{call(`{"method":"/^tools/"}`), "mcp/request", `{"method":"tools/x"}`, true},
		{call(`{"method":"/(?!x)y/"}`), "mcp/request", `{"method":"y"}`, false},
		{call(`{"method":"!/(?!x)y/"}`), "mcp/request", `{"method":"z"}`, false},
		{call(`{"method":"/(a)\\1/"}`), "mcp/request", `{"method":"aa"}`, false},
		{call(`{"method":"/a{129}/"}`), "mcp/request", `{"method":"` + strings.Repeat("a", 130) + `"}`, false},
		{call(`{"method":"!/a{1000}/"}`), "mcp/request", `{"method":"b"}`, false},
		{call(`{"method":"/a{100}/"}`), "mcp/request", `{"method":"` + strings.Repeat("a", 100) + `"}`, true},
		{call(`{"method":"/^a/"}`), "mcp/request", `{"method":"` + long + `"}`, true},
		{call(`{"method":"/^a/"}`), "mcp/request", `{"method":"` + long + `a"}`, false},
		{call(`{"method":"!/^b/"}`), "mcp/request", `{"method":"` + long + `"}`, true},
		{call(`{"method":"!/^b/"}`), "mcp/request", `{"method":"` + long + `a"}`, false},
		{call(`{"method":"` + strings.Repeat("a", 257) + `"}`), "mcp/request", `{"method":"` + strings.Repeat("a", 257) + `"}`, false},
		{call(`{"method":"!` + strings.Repeat("a", 257) + `"}`), "mcp/request", `{"method":"b"}`, false},
		{call(`{"method":"ä?ö*"}`), "mcp/request", `{"method":"äüöß"}`, true},
		{call(`{"method":""}`), "mcp/request", `{"method":""}`, true},
		// other values
		{call(`{"n":1}`), "mcp/request", `{"n":1.0}`, true},
		{call(`{"n":10}`), "mcp/request", `{"n":1e1}`, true},
		{call(`{"n":1}`), "mcp/request", `{"n":2}`, false},
		{call(`{"n":1}`), "mcp/request", `{"n":"1"}`, false},
		{call(`{"n":"1"}`), "mcp/request", `{"n":1}`, false},
		{call(`{"n":9007199254740993}`), "mcp/request", `{"n":9007199254740992}`, false},
		{call(`{"b":true}`), "mcp/request", `{"b":true}`, true},
		{call(`{"b":true}`), "mcp/request", `{"b":false}`, false},
		{call(`{"b":null}`), "mcp/request", `{"b":null}`, true},
		{call(`{"b":null}`), "mcp/request", `{}`, false},
		{call(`{"a":["x","y*",3]}`), "mcp/request", `{"a":"yz"}`, true},
		{call(`{"a":["x","y*",3]}`), "mcp/request", `{"a":3}`, true},
		{call(`{"a":["x","y*",3]}`), "mcp/request", `{"a":"z"}`, false},
		{call(`{"a":{}}`), "mcp/request", `{"a":{"x":1}}`, true},
		{call(`{"a":{}}`), "mcp/request", `{"a":[]}`, false},
		{call(`{}`), "mcp/request", `{"a":1}`, true},
		{call(`{}`), "mcp/request", ``, false},
		{`{"kind":"*","payload":{"a":1}}`, "chat", `{"a":2}`, false},
		{`{"kind":"*","payload":{"a":1}}`, "chat", `{"a":1}`, true},
		// keys
		{call(`{"params":{"name":"read_*"}}`), "mcp/request", `{"params":{"name":"read_file"}}`, true},
		{call(`{"params":{"name":"read_*"}}`), "mcp/request", `{"params":{"name":"write"}}`, false},
		{call(`{"pa*":{"name":"x"}}`), "mcp/request", `{"p":1,"params":{"name":"x"}}`, true},
		{call(`{"pa?":"x"}`), "mcp/request", `{"params":"x"}`, false},
		{call(`{"*":"x"}`), "mcp/request", `{"a/b":"x"}`, true},
		{call(`{"**":"secret"}`), "mcp/request", `{"a":[{"b":"secret"}]}`, true},
		{call(`{"**":{"b":"secret"}}`), "mcp/request", `{"a":[{"b":"secret"}]}`, true},
		{call(`{"**":"secret"}`), "mcp/request", `{"secret":"x"}`, false},
		{call(`{"$.params.name":"x"}`), "mcp/request", `{"params":{"name":"x"}}`, true},
		{call(`{"$.params.name":"x"}`), "mcp/request", `{"name":"x"}`, false},
		{call(`{"params":{"$.method":"m"}}`), "mcp/request", `{"method":"m","params":{}}`, true},
		{call(`{"$['a b']":"x"}`), "mcp/request", `{"a b":"x"}`, true},
		{call(`{"$.list[1]":"x"}`), "mcp/request", `{"list":["y","x"]}`, true},
		{call(`{"$.list[2]":"x"}`), "mcp/request", `{"list":["y","x"]}`, false},
		{call(`{"$.list[*].v":2}`), "mcp/request", `{"list":[{"v":1},{"v":2}]}`, true},
		{call(`{"$.*.v":2}`), "mcp/request", `{"a":{"v":2}}`, true},
		{call(`{"$..v":2}`), "mcp/request", `{"a":[{"b":{"v":2}}]}`, true},
		{call(`{"$..v":3}`), "mcp/request", `{"a":[{"b":{"v":2}}]}`, false},
		{call(`{"$":{}}`), "mcp/request", `{"a":1}`, true},
		{call(`{"$.a[?(@.b)]":1}`), "mcp/request", `{"a":[1]}`, false},
		{call(`{"$.a[0:2]":1}`), "mcp/request", `{"a":[1]}`, false},
		{call(`{"$.a[-1]":1}`), "mcp/request", `{"a":[1]}`, false},
		{call(`{"$.a[01]":1}`), "mcp/request", `{"a":[0,1]}`, false},
		{call(`{"$.":{}}`), "mcp/request", `{"":{}}`, false},
		{call(`{"$x":{}}`), "mcp/request", `{"$x":{}}`, false},
	} {
		if got := allowsText(t, tt.capability, tt.kind, tt.payload); got != tt.want {
			t.Errorf("%s allows %s %.100s = %t, want %t", tt.capability, tt.kind, tt.payload, got, tt.want)
		}
	}
}

func TestPatternTo(t *testing.T) {
	const c = `{"kind":"chat","to":["alice","bob"]}`
	for _, tt := range []struct {
		to   []string
		want bool
	}{{nil, false}, {[]string{"alice"}, true}, {[]string{"bob", "alice"}, true}, {[]string{"alice", "carol"}, false}} {
		if got := allowsText(t, c, "chat", "", tt.to...); got != tt.want {
			t.Errorf("to %v allowed: %t, want %t", tt.to, got, tt.want)
		}
	}
}

func TestParseCapabilityRefuses(t *testing.T) {
	for _, s := range []string{`null`, `1`, `[]`, `{}`, `{"kind":1}`, `{"kind":""}`, `{"kind":[1]}`, `{"kind":"chat","to":"alice"}`,
		`{"kind":"chat","to":[1]}`, `{"kind":"chat","payload":{"x":"` + strings.Repeat("x", maxCapability) + `"}}`} {
		if c, err := Parse(parseJSON(t, s)); err == nil {
			t.Errorf("Parse(%.60s) = %s, want an error", s, c.value.JSON())
		}
	}
	c := parseCap(t, `{"id":"x","kind":"chat","note":1,"reason":2}`)
	if got := fmt.Sprint(c.UnknownKeys()); got != "[note reason]" {
		t.Errorf("unknown keys = %s", got)
	}
}

// minDuration returns the shortest of 20 runs, because other processes compete with the tests.
func minDuration(f func()) time.Duration {
	best := time.Hour
	for range 20 {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return best
}

// TestDecisionIsBounded: a decision stays within its time, whatever the pattern and the payload are.
func TestDecisionIsBounded(t *testing.T) {
	hold := func(n int, texts ...string) []*Capability {
		var out []*Capability
		for i := range n {
			c := parseCap(t, texts[i%len(texts)])
			out = append(out, &c)
		}
		return out
	}
	call := func(payload string) string { return `{"kind":"x","payload":` + payload + `}` }
	as := strings.Repeat("a", 64<<10)
	wide := "[" + strings.TrimSuffix(strings.Repeat(`{"a":"aaaaaaaaaaaaaaaa"},`, 40_000), ",") + "]"
	deep := strings.Repeat(`{"a":`, 60) + `1` + strings.Repeat(`}`, 60)
	star := strings.Repeat("a*", 127)
	var ends, ids []string
	var to []Addressee
	for n := range 200 {
		ends = append(ends, fmt.Sprintf(`"$..k%d":1`, 19_000+n))
	}
	for n := range 600 {
		ids = append(ids, fmt.Sprintf(`"%d"`, n))
		to = append(to, Addressee{Name: fmt.Sprint(max(599-n, 200)), ID: fmt.Sprint(max(599-n, 200))})
	}
	to[599].Name, to[599].ID = "x", "x"
	for _, tt := range []struct {
		name    string
		caps    []*Capability
		payload string // if empty, the capabilities are tried on many addressees
	}{
		{"absent names", hold(256, call(`[`+strings.TrimSuffix(strings.Repeat(`{"$.q":1},`, 300), ",")+`]`)), bigObject("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20_000)},
		{"descents that succeed", hold(256, call(`{`+strings.Join(ends, ",")+`,"$..z":1}`)), bigObject("k", 20_000)},
		{"addressees", hold(256, `{"kind":"x","to":[`+strings.Join(ids, ",")+`]}`), ""},
		{"stars on 64 KiB", hold(256, call(`{"t":"a*a*a*b"}`), call(`{"t":"*a*a*a*b"}`)), `{"t":"` + as + `"}`},
		{"many stars", hold(256, call(`{"t":"`+star+`b"}`), call(`{"t":"**`+star+`b"}`)), `{"t":"` + as + `"}`},
		{"a long tail", hold(256, call(`{"t":"*`+as[:250]+`b"}`)), `{"t":"` + as + `"}`},
		{"expressions", hold(256, call(`{"t":"/(a|aa)+b|(a+)+c/"}`), call(`{"t":"/(a?){30}(a*)*b/"}`)), `{"t":"` + as[:1024] + `"}`},
		{"the largest expression", hold(256, call(`{"t":"/[ab]{60}(a|b)*[ab]{40}c/"}`)), `{"t":"` + as[:1024] + `"}`},
		{"descent into many", hold(256, call(`{"$..b":"x"}`), call(`{"**":"b"}`), call(`{"**":{"**":{"**":"b"}}}`)), `{"l":` + wide + `}`},
		{"descent into depth", hold(256, call(`{"**":{"**":{"**":{"**":"b"}}}}`), call(`{"$..a..a..a..b":"x"}`)), deep},
		{"many alternatives", hold(256, call(`{"t":[`+strings.TrimSuffix(strings.Repeat(`"*ab*",`, 400), ",")+`]}`)), `{"t":"` + as + `"}`},
		{"many keys", hold(256, call(`{"*a*b":1,"zz":1}`)), bigObject("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", 20_000)},
		{"long numbers", hold(256, call(`{"t":1}`)), `{"t":` + strings.Repeat("1", 500_000) + `}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			payload, addressees := wire.Obj(), to
			if tt.payload != "" {
				payload, addressees = parseJSON(t, tt.payload), nil
			}
			took := minDuration(func() {
				if FirstAllowing(tt.caps, "x", addressees, payload) != nil {
					t.Error("allowed")
				}
			})
			t.Logf("%v", took)
			if took > decisionBound {
				t.Errorf("a decision took %v, want under %v", took, decisionBound)
			}
		})
	}
}

func bigObject(prefix string, n int) string {
	var b strings.Builder
	b.WriteByte('{')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%s%d":1`, prefix, i)
	}
	b.WriteByte('}')
	return b.String()
}

// TestCompileIsBounded: compiling the largest possible grant does not hold up the space.
func TestCompileIsBounded(t *testing.T) {
	list := make([]wire.Value, MaxHeld)
	text := wire.Text("/" + strings.Repeat("(a{1000}){1000}", 15) + "/")
	one := wire.Obj(wire.TextField("kind", "x"), wire.Field("payload", wire.Arr(text, text, text, text, text, text, text, text, text, text)))
	for i := range list {
		list[i] = one
	}
	took := minDuration(func() {
		if _, err := ParseList(wire.Arr(list...)); err != nil {
			t.Error(err)
		}
	})
	if took > grantBound {
		t.Errorf("compiling a grant took %v", took)
	}
}

func FuzzMatcher(f *testing.F) {
	f.Add(`{"kind":"mcp/*","payload":{"method":"tools/*","$..x":["!a","/b/"]}}`, "mcp/request", `{"method":"tools/call","x":1}`)
	f.Add(`{"kind":["a","!b"],"to":["x"],"payload":{"**":{"a*":1.0}}}`, "a", `{"a":[{"ab":1}]}`)
	f.Add(`{"kind":"*","payload":{"$['a'][0].*":"/(a|b)*/"}}`, "x", `{"a":[{"b":"abab"}]}`)
	f.Add(`"chat"`, "chat", `{}`)
	f.Fuzz(func(t *testing.T, capability, kind, payload string) {
		v, err := wire.ParseForeign([]byte(capability), 64, 1000)
		if err != nil {
			return
		}
		c, err := Parse(v)
		if err != nil {
			return
		}
		p, err := wire.ParseForeign([]byte(payload), 64, 1000)
		if err != nil {
			return
		}
		list := []*Capability{&c}
		first := FirstAllowing(list, kind, nil, p) != nil
		if again := FirstAllowing(list, kind, nil, p) != nil; again != first {
			t.Errorf("%s on %s: %t, then %t", capability, payload, first, again)
		}
		if first && envelope.IsSystem(kind) && c.value.GetStr("kind") == "*" {
			t.Errorf("* allowed %s", kind)
		}
		written, err := wire.ParseForeign(v.JSON(), 64, 1<<17)
		if err != nil {
			t.Fatalf("%s, written as %s: %v", capability, v.JSON(), err)
		}
		if d, err := Parse(written); err != nil || d.rule != c.rule {
			t.Errorf("%s has two rules, %v", capability, err)
		}
	})
}
