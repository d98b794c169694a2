package wire

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
)

func mustParse(t testing.TB, text string) Value {
	t.Helper()
	v, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%s) = %v", text, err)
	}
	return v
}

func TestValueAccessors(t *testing.T) {
	v := mustParse(t, `{"s":"x","n":1.0,"t":true,"f":false,"z":null,"a":["p",2],"o":{"k":"v"}}`)
	if s := v.GetStr("s"); s != "x" {
		t.Errorf("GetStr(s) = %q", s)
	}
	for _, key := range []string{"n", "t", "z", "a", "o", "S", "missing"} {
		if s := v.GetStr(key); s != "" {
			t.Errorf("GetStr(%s) = %q, want none", key, s)
		}
	}
	if n, ok := must(v.Get("n")).Num(); n != "1.0" || !ok {
		t.Errorf("Num = %q, %v: the token must be as written", n, ok)
	}
	if b, ok := must(v.Get("t")).Boolean(); !b || !ok {
		t.Errorf("Boolean(true) = %v, %v", b, ok)
	}
	if b, ok := must(v.Get("f")).Boolean(); b || !ok {
		t.Errorf("Boolean(false) = %v, %v", b, ok)
	}
	if _, ok := must(v.Get("z")).Boolean(); ok {
		t.Error("null is a boolean")
	}
	if got := slices.Collect(must(v.Get("a")).Elems()); len(got) != 2 || got[1].Kind() != Number {
		t.Errorf("Elems = %v", got)
	}
	if got := slices.Collect(must(v.Get("o")).Elems()); got != nil {
		t.Errorf("Elems of an object = %v", got)
	}
	if got := must(v.Get("a")).Members(); got != nil {
		t.Errorf("Members of an array = %v", got)
	}
	if _, ok := must(v.Get("a")).Get(""); ok {
		t.Error("Get found a member in an array")
	}
	if v.Len() != 7 || must(v.Get("s")).Len() != 0 {
		t.Error("Len is wrong")
	}
}

func must(v Value, ok bool) Value {
	if !ok {
		panic("no such member")
	}
	return v
}

// TestValueImmutable checks that a caller with a Value, or with the slice that it was made of, cannot change other
// values.
func TestValueImmutable(t *testing.T) {
	base := mustParse(t, `{"a":1,"b":2,"c":[1,2]}`)
	before := string(base.JSON())
	with, other := base.With("d", Int(4)), base.With("e", Int(5))
	replaced, without := base.With("a", Text("x")), base.Without("b", "none")

	members := []Member{{"k", Text("v")}, {"l", Text("w")}}
	made := Obj(members...)
	members[0] = Member{"changed", Null.value()}
	elems := []Value{Int(1), Int(2)}
	arr := Arr(elems...)
	elems[0] = Text("changed")

	for _, tt := range []struct {
		name string
		v    Value
		want string
	}{
		{"base", base, before},
		{"With, new", with, `{"a":1,"b":2,"c":[1,2],"d":4}`},
		{"With, another", other, `{"a":1,"b":2,"c":[1,2],"e":5}`},
		{"With, in place", replaced, `{"a":"x","b":2,"c":[1,2]}`},
		{"Without", without, `{"a":1,"c":[1,2]}`},
		{"Obj", made, `{"k":"v","l":"w"}`},
		{"Arr", arr, `[1,2]`},
		{"With on none", Value{}.With("a", Bool(true)), `{"a":true}`},
		{"WithOptional", base.WithOptional("d", "x"), `{"a":1,"b":2,"c":[1,2],"d":"x"}`},
		{"WithOptional without a text", base.WithOptional("a", ""), before},
	} {
		if got := string(tt.v.JSON()); got != tt.want {
			t.Errorf("%s = %s, want %s", tt.name, got, tt.want)
		}
	}
}

func (k Kind) value() Value { return Value{kind: k} }

// TestParsedSiblingsDoNotOverlap checks that appending to one container does not overwrite the next, although the
// containers of a text share an allocation.
func TestParsedSiblingsDoNotOverlap(t *testing.T) {
	v := mustParse(t, `[{"a":1},{"b":2},[3],[4]]`)
	first := v.At(0).With("x", Int(9))
	if got := string(v.JSON()); got != `[{"a":1},{"b":2},[3],[4]]` {
		t.Errorf("the tree became %s", got)
	}
	if got := string(first.JSON()); got != `{"a":1,"x":9}` {
		t.Errorf("With = %s", got)
	}
}

func TestParseDoesNotKeepTheBuffer(t *testing.T) {
	buf := []byte(`{"key":"value","n":12}`)
	v, err := Parse(buf)
	if err != nil {
		t.Fatal(err)
	}
	for i := range buf {
		buf[i] = 'x'
	}
	if got := string(v.JSON()); got != `{"key":"value","n":12}` {
		t.Errorf("after the caller reused its buffer: %s", got)
	}
}

func TestBuilders(t *testing.T) {
	v := Obj(Member{"s", Text("a\"\u2028<\x01")}, Member{"bad", Text("a\xffb")}, Member{"n", Int(-3)},
		Member{"l", Texts([]Intent{Schedule, Deliver})}, Member{"b", Bool(false)}, Member{"z", Value{}})
	want := "{\"s\":\"a\\\"\u2028<\\u0001\",\"bad\":\"a\ufffdb\",\"n\":-3,\"l\":[\"mesh.schedule\",\"mesh.message\"],\"b\":false,\"z\":null}"
	if got := string(v.JSON()); got != want {
		t.Errorf("JSON = %s, want %s", got, want)
	}
	if again := mustParse(t, want); string(again.JSON()) != want {
		t.Errorf("read back as %s", again.JSON())
	}
}

func TestAppendQuoted(t *testing.T) {
	for c := range rune(0x80) {
		got := AppendString(nil, "a"+string(c)+"b")
		var back string
		if err := json.Unmarshal(got, &back); err != nil || back != "a"+string(c)+"b" {
			t.Errorf("AppendString(%q) = %s: %q, %v", c, got, back, err)
		}
		if short := c >= ' ' && c != '"' && c != '\\'; short != (len(got) == 5) {
			t.Errorf("AppendString(%q) = %s: escaped without need or the reverse", c, got)
		}
	}
}

// TestValueInsideJSON checks that a Value as a field of a struct that encoding/json reads and writes keeps the strict
// rules and the number tokens.
func TestValueInsideJSON(t *testing.T) {
	var listing Listing
	if err := json.Unmarshal([]byte(`{"agents":[{"n":1.0,"s":"<&>"},null],"cursor":"c"}`), &listing); err != nil {
		t.Fatal(err)
	}
	if len(listing.Agents) != 2 || string(listing.Agents[0].JSON()) != `{"n":1.0,"s":"<&>"}` || !listing.Agents[1].IsNull() {
		t.Errorf("read %v", listing.Agents)
	}
	out, err := json.Marshal(listing)
	if err != nil {
		t.Fatal(err)
	}
	if again := mustParse(t, string(out)); string(must(again.Get("agents")).At(0).JSON()) != `{"n":1.0,"s":"<&>"}` {
		t.Errorf("written as %s", out)
	}
	for _, bad := range []string{`{"a":1,"a":2}`, `{"a":{"b":1,"b":2}}`, "{\"a\":\"\xff\"}", `{"a":9007199254740993}`, `{"a":9007199254740993.0}`, `{"__proto__":1}`} {
		if err := json.Unmarshal([]byte(`{"agents":[`+bad+`]}`), &listing); err == nil {
			t.Errorf("%s was accepted inside a larger document", bad)
		}
	}
}

func TestValueOf(t *testing.T) {
	v, err := ValueOf(struct {
		A string `json:"a"`
		B int    `json:"b,omitempty"`
	}{A: "<"})
	if err != nil || string(v.JSON()) != `{"a":"<"}` {
		t.Errorf("ValueOf = %s, %v", v.JSON(), err)
	}
	if _, err := ValueOf(func() {}); !goldentest.Refuses(t, "a function", err) {
		t.Errorf("ValueOf(func) = %v", err)
	}
	if _, err := ValueOf(int64(1) << 53); err == nil {
		t.Error("ValueOf accepted 2^53")
	}
}
