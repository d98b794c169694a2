package message

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

const sample = `{"v":"0.1","id":"m1","ts":1767225600000,"op":"query","from":{"agent":"a","org":"o"},"to":{"agent":"b","org":"p"},` +
	`"p":{"domain":"weather"},"cls":"int","sig":"ed25519:x"}`

func parseText(t testing.TB, text string) wire.Value {
	t.Helper()
	v, err := wire.ParseForeign([]byte(text), 60, MaxValues)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestMembers tries each member missing, null and of another type (MS-2, MS-8).
func TestMembers(t *testing.T) {
	good := parseText(t, sample)
	if _, e := Parse(good); e != nil {
		t.Fatal(e)
	}
	required := map[string]bool{"v": true, "id": true, "ts": true, "op": true, "p": true, "cls": true, "sig": true, "to": true}
	for _, m := range good.Members() {
		if _, e := Parse(good.Without(m.Key)); required[m.Key] != (e != nil) || e != nil && (e.Code != CodeMissingField || e.Field != m.Key) {
			t.Errorf("without %s: %v", m.Key, e)
		}
		if _, e := Parse(good.With(m.Key, wire.Value{})); required[m.Key] != (e != nil) {
			t.Errorf("%s null: %v", m.Key, e)
		}
		want := CodeSchema
		if m.Key == "v" {
			want = CodeVersion
		}
		for _, other := range []wire.Value{wire.Bool(true), wire.Arr()} {
			if _, e := Parse(good.With(m.Key, other)); e == nil || e.Code != want || e.Field != m.Key {
				t.Errorf("%s = %s: %v, want %s", m.Key, other.JSON(), e, want)
			}
		}
	}
	for _, tt := range []struct {
		key, value string
		want       Code
	}{
		{"v", `1`, CodeVersion}, {"v", `"0.2"`, CodeVersion}, {"op", `"dance"`, CodeSchema}, {"cls", `"top"`, CodeSchema},
		{"cls", `"confidential"`, ""}, {"cls", `"secret"`, ""}, {"ts", `1.5`, CodeSchema}, {"ts", `-1`, CodeSchema},
		{"ts", `99999999999999999999`, CodeSchema}, {"id", `""`, CodeSchema}, {"id", `"a\u0000"`, CodeSchema},
		{"id", `"` + strings.Repeat("x", 129) + `"`, CodeSchema}, {"from", `{"agent":"a b","org":"o"}`, CodeSchema},
		{"from", `{"agent":"a"}`, CodeMissingField}, {"exp", `"soon"`, CodeSchema}, {"cap", `[1]`, CodeSchema},
		{"from", `{"agent":"a","org":"o","enc_key":null}`, ""}, {"op", `"respond"`, CodeMissingField},
		{"unknown", `{"a":[1e5]}`, ""}, {"ext", `{"acme.x":{}}`, ""}, {"pii_meta", `{"types":[]}`, CodeSchema},
		{"pii_meta", `{"types":["shoe"]}`, CodeSchema}, {"pii_meta", `{"types":["email"]}`, ""},
		{"pii_meta", `{"types":["email"],"consent":{"granted_by":"u","purpose":"x","proof":"y","scope":["email"]}}`, ""},
		{"pii_meta", `{"types":["email"],"consent":{"granted_by":"u","purpose":"x","proof":"y","scope":"email"}}`, CodeSchema},
		{"pii_meta", `{"types":["email"],"consent":{"granted_by":"u","purpose":"x","proof":"y","scope":[]}}`, CodeSchema},
	} {
		_, e := Parse(good.With(tt.key, parseText(t, tt.value)))
		if got := codeOf(e); got != tt.want {
			t.Errorf("%s = %s: %v, want %q", tt.key, tt.value, e, tt.want)
		}
	}
	for _, op := range []string{"hello", "verify"} {
		if _, e := Parse(good.With("op", wire.Text(op)).Without("id", "to", "cls")); e != nil {
			t.Errorf("%s without id, to and cls: %v", op, e)
		}
	}
	if _, e := Parse(good.With("op", wire.Text("ping")).Without("to")); e != nil {
		t.Errorf("ping without to: %v", e)
	}
}

func codeOf(e *Error) Code {
	if e == nil {
		return ""
	}
	return e.Code
}

// TestPayloads tries every operation and action, minimal and broken (MS-31).
func TestPayloads(t *testing.T) {
	for _, tt := range []struct {
		op, p string
		want  Code
		field string
	}{
		{"query", `{"domain":"d"}`, "", ""},
		{"query", `{}`, CodeMissingField, "p.domain"},
		{"query", `{"domain":7}`, CodeInvalidParam, "p.domain"},
		{"query", `{"domain":"d","params":[]}`, CodeInvalidParam, "p.params"},
		{"query", `{"domain":"d","response_format":{"type":"song"}}`, CodeInvalidParam, "p.response_format.type"},
		{"respond", `{"status":"success","data":null}`, "", ""},
		{"respond", `{"status":"great"}`, CodeInvalidParam, "p.status"},
		{"respond", `{}`, CodeMissingField, "p.status"},
		{"task", `{"action":"create","task_id":"t"}`, "", ""},
		{"task", `{"action":"dance","task_id":"t"}`, CodeInvalidParam, "p.action"},
		{"task", `{"action":"create"}`, CodeMissingField, "p.task_id"},
		{"task", `{"action":"create","task_id":"t","deadline":"later"}`, CodeInvalidParam, "p.deadline"},
		{"task", `{"action":"create","task_id":"t","subtasks":[1]}`, CodeInvalidParam, "p.subtasks."},
		{"task", `{"action":"create","task_id":"t","callback":{"on_complete":1}}`, CodeInvalidParam, "p.callback.on_complete"},
		{"stream", `{"action":"start","stream_id":"s"}`, "", ""},
		{"stream", `{"action":"chunk","stream_id":"s","seq":0,"data":"x"}`, "", ""},
		{"stream", `{"action":"chunk","stream_id":"s","seq":0}`, CodeMissingField, "p.data"},
		{"stream", `{"action":"chunk","stream_id":"s","seq":1.5,"data":""}`, CodeInvalidParam, "p.seq"},
		{"stream", `{"action":"chunk","stream_id":"s","seq":1,"data":"` + strings.Repeat("x", MaxChunk+1) + `"}`, CodeInvalidParam, "p.data"},
		{"stream", `{"action":"chunk","stream_id":"s","seq":1,"data":"` + strings.Repeat("x", MaxChunk) + `"}`, "", ""},
		{"stream", `{"action":"start","stream_id":"s","content_type":"` + strings.Repeat("x", MaxText+1) + `"}`, CodeInvalidParam, "p.content_type"},
		{"stream", `{"action":"end","stream_id":"s"}`, "", ""},
		{"tool", `{"action":"list"}`, "", ""},
		{"tool", `{"action":"invoke","tool":"t"}`, CodeMissingField, "p.input"},
		{"tool", `{"action":"invoke","tool":"t","input":{}}`, "", ""},
		{"tool", `{"action":"describe"}`, CodeMissingField, "p.tool"},
		{"consent", `{"action":"request","data_types":["email"],"purpose":"x","duration":"24h"}`, "", ""},
		{"consent", `{"action":"verify","consent_token":"` + strings.Repeat("x", 8<<10+1) + `"}`, CodeInvalidParam, "p.consent_token"},
		{"consent", `{"action":"request","data_types":[],"purpose":"x","duration":"24h"}`, CodeInvalidParam, "p.data_types"},
		{"consent", `{"action":"request","data_types":["email"],"purpose":"x","duration":"ever"}`, CodeInvalidParam, "p.duration"},
		{"consent", `{"action":"revoke"}`, CodeMissingField, "p.consent_token"},
		{"error", `{"code":"E_TIMEOUT"}`, "", ""},
		{"error", `{"code":"E_PII"}`, "", ""},
		{"error", `{"code":"E_WAT"}`, CodeInvalidParam, "p.code"},
		{"hello", `{"protocol_versions":["0.1"],"supported_cls":["public","pii"]}`, "", ""},
		{"hello", `{}`, CodeMissingField, "p.protocol_versions"},
		{"verify", `{"challenge":"` + strings.Repeat("0", 64) + `","timestamp":1}`, "", ""},
		{"verify", `{"challenge":"short","timestamp":1}`, CodeInvalidParam, "p.challenge"},
		{"ping", `{"nonce":"n"}`, "", ""},
		{"ping", `{}`, CodeMissingField, "p.nonce"},
		{"discover", `{"capability":"x"}`, "", ""},
		{"discover", `{"capabilities":{"any":["x"]},"limit":500}`, "", ""},
		{"discover", `{}`, CodeMissingField, "p.capability"},
		{"register", `{"action":"create"}`, "", ""},
	} {
		m := Message{Op: Op(tt.op), P: parseText(t, tt.p)}
		_, e := m.Payload()
		if codeOf(e) != tt.want || e != nil && e.Field != tt.field {
			t.Errorf("%s %.80s: %v, want %s %s", tt.op, tt.p, e, tt.want, tt.field)
		}
	}
}

// TestBounds tests strict JSON, nesting and sizes (MS-9, MS-10).
func TestBounds(t *testing.T) {
	nested := func(n int) string {
		return strings.Replace(sample, `"weather"`, `"w","params":{"x":`+strings.Repeat("[", n-3)+strings.Repeat("]", n-3)+`}`, 1)
	}
	sized := func(n int) []byte {
		pad := n - len(sample)
		return []byte(strings.Replace(sample, `"weather"`, `"weather`+strings.Repeat("x", pad)+`"`, 1))
	}
	for _, tt := range []struct {
		name string
		raw  []byte
		want Code
	}{
		{"depth 50", []byte(nested(50)), ""},
		{"depth 51", []byte(nested(51)), CodeParse},
		{"depth 50 in an envelope", Wrap(parseText(t, nested(50)), true), ""},
		{"depth 51 in an envelope", Wrap(parseText(t, nested(51)), true), CodeParse},
		{"1 MiB", sized(MaxMessage), ""},
		{"1 MiB and a byte", sized(MaxMessage + 1), CodeSchema},
		{"10 MB", sized(10 << 20), CodeSchema},
		{"null", []byte("null"), CodeParse},
		{"empty", nil, CodeParse},
		{"array", []byte("[]"), CodeParse},
		{"duplicate key", []byte(`{"v":"0.1","v":"0.1"}`), CodeParse},
		{"__proto__", []byte(`{"__proto__":{}}`), CodeParse},
		{"byte order mark", append([]byte("\xef\xbb\xbf"), sample...), CodeParse},
		{"lone surrogate", []byte(`{"v":"\ud800"}`), CodeParse},
		{"trailing", []byte(sample + "x"), CodeParse},
		{"NaN", []byte(`{"v":NaN}`), CodeParse},
		{"overflow", []byte(`{"v":1e400}`), CodeParse},
		{"two amounts with one signature", []byte(`{"p":[{"amount":9007199254740993.0}]}`), CodeParse},
		{"a double that Python writes with these digits", []byte(`{"v":"0.1","p":[{"amount":[1e+22,1.5E+300,9007199254740992.0,90071992547409920e-1]}]}`), ""},
		{"the same with an exponent", []byte(`{"p":[{"amount":9007199254740993e0}]}`), CodeParse},
		{"compressed", []byte(`{"moltspeak":"0.1","envelope":{"encrypted":false,"compressed":true},"message":{}}`), CodeSchema},
		{"another encoding", []byte(`{"moltspeak":"0.1","envelope":{"encoding":"utf-16"},"message":{}}`), CodeSchema},
		{"another version", []byte(`{"moltspeak":"0.2","envelope":{},"message":{}}`), CodeVersion},
		{"no envelope", []byte(`{"moltspeak":"0.1","message":{}}`), CodeMissingField},
		{"envelope null", []byte(`{"moltspeak":"0.1","envelope":null,"message":{}}`), CodeMissingField},
		{"another algorithm", []byte(`{"moltspeak":"0.1","envelope":{"encrypted":true,"algorithm":"rot13","sender_public":"x25519:a","nonce":"b"},"ciphertext":"c"}`), CodeSchema},
	} {
		if _, e := ReadPacket(tt.raw, nil); codeOf(e) != tt.want {
			t.Errorf("%s: %v, want %q", tt.name, e, tt.want)
		}
	}
}

// TestBoxes: a box opens with and without prefixes, and fails without details (MS-19, MS-20).
func TestBoxes(t *testing.T) {
	a, b := signing.NewBoxKey(bytes.Repeat([]byte{1}, 32)), signing.NewBoxKey(bytes.Repeat([]byte{2}, 32))
	box := Seal(parseText(t, sample), a, b.Public())
	for _, raw := range [][]byte{box, bytes.ReplaceAll(box, []byte("base64:"), nil)} {
		p, e := ReadPacket(raw, b)
		if e != nil || !p.Boxed || string(p.Tree.JSON()) != sample {
			t.Errorf("%s: %v", raw, e)
		}
	}
	if _, e := ReadPacket(box, a); codeOf(e) != CodeAuthFailed || e.Fix != "" || e.Field != "" {
		t.Errorf("a box for another: %v", e)
	}
}

// TestSignatureSpellings: a signature with one changed byte, another length or another spelling fails (MS-15).
func TestSignatureSpellings(t *testing.T) {
	key := signing.NewEd25519FromSeed(bytes.Repeat([]byte{3}, 32))
	tree := Sign(parseText(t, sample), key)
	good := tree.GetStr("sig")
	check := func(sig string) *Error {
		m, e := Parse(tree.With("sig", wire.Text(sig)))
		if e != nil {
			return e
		}
		return m.Verify(key.Public())
	}
	if e := check(good); e != nil {
		t.Fatal(e)
	}
	bare := strings.TrimPrefix(good, "ed25519:")
	for _, sig := range []string{bare, "ED25519:" + bare, strings.TrimRight(good, "="), good + "\n", good[:40] + "\r\n" + good[40:],
		"ed25519:" + strings.NewReplacer("+", "-", "/", "_").Replace(bare) + "-", good + "AAAA", "ed25519:AAAA", "ed25519:",
		sigOf(47), sigOf(48), sigOf(63), sigOf(65)} {
		if e := check(sig); codeOf(e) != CodeSignature {
			t.Errorf("signature %q: %v", sig, e)
		}
	}
}

func sigOf(n int) string { return Ed25519Prefix + base64.StdEncoding.EncodeToString(make([]byte, n)) }

// TestCodes: each of the fourteen codes has a category and a status, and survives being written and read.
func TestCodes(t *testing.T) {
	if len(Codes) != 14 {
		t.Errorf("%d codes", len(Codes))
	}
	for _, row := range Codes {
		e := Fail(row.Code)
		m := Message{Op: OpError, P: e.Payload(false)}
		p, bad := m.Payload()
		f, ok := p.(Fault)
		if bad != nil || !ok || f.Code != row.Code || m.P.GetStr("category") != row.Category || f.Recoverable != row.Recoverable {
			t.Errorf("%s came back as %+v, %v", row.Code, f, bad)
		}
		if hint, _ := m.P.Get("suggestion"); hint.GetStr("action") != row.Action || row.Recoverable && row.Action == "" {
			t.Errorf("%s is recoverable %v and has the hint %s", row.Code, row.Recoverable, hint.JSON())
		}
		if f.Wire().Code == "" {
			t.Errorf("%s has no code of AgentMesh", row.Code)
		}
	}
	for _, row := range wire.Table() {
		if e := FromWire(row); e.Status < 200 || e.Status > 599 {
			t.Errorf("%s: %+v", row.Row(), e)
		}
	}
	if e := FromWire(errors.New("x")); e.Code != CodeInternal {
		t.Errorf("an unknown error is %s", e.Code)
	}
	secret := FailAt(CodeInvalidParam, "p.x", "why").Because(errors.New("private"))
	if text := string(secret.Payload(true).JSON()); strings.Contains(text, "p.x") || strings.Contains(text, "why") || strings.Contains(text, "private") {
		t.Errorf("a stranger learns %s", text)
	}
}

// TestDraftHasNoEmptyMembers: our messages have no empty members, because Python peers would drop them and then fail
// to verify (MS-7).
func TestDraftHasNoEmptyMembers(t *testing.T) {
	d := Draft{ID: "i", Op: OpQuery, Time: time.UnixMilli(1767225600000), From: Agent{Agent: "a", Org: "o"}, To: Agent{Agent: "b", Org: "p"},
		P: wire.Obj(wire.TextField("domain", "d")), Class: Internal}
	want := `{"v":"0.1","id":"i","ts":1767225600000,"op":"query","from":{"agent":"a","org":"o"},"to":{"agent":"b","org":"p"},"p":{"domain":"d"},"cls":"int"}`
	if got := string(d.Tree().JSON()); got != want {
		t.Errorf("draft = %s", got)
	}
	d.PII = &PIIMeta{Types: []string{"email"}, GrantedBy: "user:x", Purpose: "p", Proof: "consent-token:1", Expires: time.UnixMilli(5), MaskFields: []string{"m"}}
	d.Cap, d.Re, d.Expires, d.Ext = []string{"c"}, "r", time.UnixMilli(9), wire.Obj(wire.Field("o.x", wire.Obj()))
	m, e := Parse(d.Tree().With("sig", wire.Text("s")))
	if e != nil || fmt.Sprintf("%v %d %v %s %d", m.PII.Types, m.PII.Expires.UnixMilli(), m.Cap, m.Re, m.Expires.UnixMilli()) != "[email] 5 [c] r 9" {
		t.Errorf("read back: %+v, %v", m, e)
	}
}

func FuzzReadPacket(f *testing.F) {
	key := signing.NewBoxKey(bytes.Repeat([]byte{2}, 32))
	f.Add([]byte(sample))
	f.Add([]byte(`{"moltspeak":"0.1","envelope":{"encrypted":false},"message":` + sample + `}`))
	f.Add([]byte(`{"moltspeak":"0.1","envelope":{"encrypted":true,"algorithm":"x25519-xsalsa20-poly1305","sender_public":"x25519:+0Gx/PdcEif6CIdgVqXtB6xE/gwRbsLegLjlI5WdeCQ=","nonce":"base64:eDd7UldXtJRCf4kBT5fXmSjzk40U61Hi"},"ciphertext":"base64:y9JC2QUUfnpvrS1miF0k6A=="}`))
	for op := range payloads {
		f.Add([]byte(strings.Replace(sample, `"query"`, `"`+string(op)+`"`, 1)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, e := ReadPacket(raw, key)
		if e != nil {
			return
		}
		m, e := Parse(p.Tree)
		if e != nil {
			return
		}
		_, _ = m.Payload()
		if text := signing.Canonical(p.Tree, signing.Python); !isASCII(text) {
			t.Errorf("canonical text %q is not ASCII", text)
		} else if again, err := wire.ParseForeign(text, 60, MaxValues); err != nil {
			t.Errorf("canonical text does not read back: %v", err)
		} else if !bytes.Equal(signing.Canonical(again, signing.Python), text) {
			t.Errorf("canonical text is not stable: %s", text)
		}
	})
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}
