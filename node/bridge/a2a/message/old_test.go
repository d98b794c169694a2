package message

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// samples has, for each row of the table, an object with the member in the three forms.
var samples = map[string][3]string{
	"send message":                       {`{"message":{"messageId":"m"}}`, `{"message":{"kind":"message","messageId":"m"}}`, `{"message":{"messageId":"m"}}`},
	"send configuration":                 {`{"configuration":{"returnImmediately":true}}`, `{"configuration":{"blocking":false}}`, `{"configuration":{"blocking":false}}`},
	"configuration returnImmediately":    {`{"returnImmediately":false,"historyLength":2}`, `{"blocking":true,"historyLength":2}`, `{"blocking":true,"historyLength":2}`},
	"configuration taskPushNotification": {`{"taskPushNotificationConfig":{"url":"u"}}`, `{"pushNotificationConfig":{"url":"u"}}`, `{"pushNotification":{"url":"u"}}`},
	"push authentication":                {`{"authentication":{"scheme":"Basic"}}`, `{"authentication":{"schemes":["Basic"]}}`, `{"authentication":{"schemes":["Basic"]}}`},
	"login scheme":                       {`{"scheme":"Bearer","credentials":"c"}`, `{"schemes":["Bearer"],"credentials":"c"}`, `{"schemes":["Bearer"],"credentials":"c"}`},
	"message role":                       {`{"role":"ROLE_AGENT"}`, `{"kind":"message","role":"agent"}`, `{"role":"ROLE_AGENT"}`},
	"message parts":                      {`{"parts":[{"text":"a"}],"taskId":"t"}`, `{"kind":"message","parts":[{"text":"a","kind":"text"}],"taskId":"t"}`, `{"content":[{"text":"a"}],"taskId":"t"}`},
	"part raw":                           {`{"raw":"aGk="}`, `{"file":{"bytes":"aGk="},"kind":"file"}`, `{"file":{"fileWithBytes":"aGk="}}`},
	"part url":                           {`{"url":"https://x"}`, `{"file":{"uri":"https://x"},"kind":"file"}`, `{"file":{"fileWithUri":"https://x"}}`},
	"part filename":                      {`{"raw":"","filename":"a.txt"}`, `{"file":{"bytes":"","name":"a.txt"},"kind":"file"}`, `{"file":{"fileWithBytes":"","name":"a.txt"}}`},
	"part mediaType":                     {`{"url":"u","mediaType":"a/b"}`, `{"file":{"uri":"u","mimeType":"a/b"},"kind":"file"}`, `{"file":{"fileWithUri":"u","mimeType":"a/b"}}`},
	"part data":                          {`{"data":{"n":1}}`, `{"data":{"n":1},"kind":"data"}`, `{"data":{"data":{"n":1}}}`},
	"artifact parts":                     {`{"parts":[{"text":"a"}],"name":"n"}`, `{"parts":[{"text":"a","kind":"text"}],"name":"n"}`, `{"parts":[{"text":"a"}],"name":"n"}`},
	"task status":                        {`{"status":{"state":"TASK_STATE_WORKING"}}`, `{"kind":"task","status":{"state":"working"}}`, `{"status":{"state":"TASK_STATE_WORKING"}}`},
	"task artifacts":                     {`{"artifacts":[{"parts":[{"text":""}]}]}`, `{"kind":"task","artifacts":[{"parts":[{"text":"","kind":"text"}]}]}`, `{"artifacts":[{"parts":[{"text":""}]}]}`},
	"task history":                       {`{"history":[{"role":"ROLE_USER"}]}`, `{"kind":"task","history":[{"kind":"message","role":"user"}]}`, `{"history":[{"role":"ROLE_USER"}]}`},
	"status state":                       {`{"state":"TASK_STATE_CANCELED"}`, `{"state":"canceled"}`, `{"state":"TASK_STATE_CANCELLED"}`},
	"status message":                     {`{"message":{"parts":[]}}`, `{"message":{"kind":"message","parts":[]}}`, `{"message":{"content":[]}}`},
	"statusUpdate status":                {`{"status":{"state":"TASK_STATE_FAILED"}}`, `{"kind":"status-update","status":{"state":"failed"},"final":true}`, `{"status":{"state":"TASK_STATE_FAILED"},"final":true}`},
	"artifactUpdate artifact":            {`{"artifact":{"parts":[{"text":"a"}]},"append":true}`, `{"kind":"artifact-update","artifact":{"parts":[{"text":"a","kind":"text"}]},"append":true}`, `{"artifact":{"parts":[{"text":"a"}]},"append":true}`},
	"result task":                        {`{"task":{"id":"t"}}`, `{"task":{"kind":"task","id":"t"}}`, `{"task":{"id":"t"}}`},
	"result message":                     {`{"message":{"role":"ROLE_AGENT"}}`, `{"message":{"kind":"message","role":"agent"}}`, `{"message":{"role":"ROLE_AGENT"}}`},
	"result statusUpdate":                {`{"statusUpdate":{"status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}`, `{"statusUpdate":{"kind":"status-update","status":{"state":"input-required"},"final":true}}`, `{"statusUpdate":{"status":{"state":"TASK_STATE_INPUT_REQUIRED"},"final":true}}`},
	"result artifactUpdate":              {`{"artifactUpdate":{"taskId":"t"}}`, `{"artifactUpdate":{"kind":"artifact-update","taskId":"t"}}`, `{"artifactUpdate":{"taskId":"t"}}`},
	"tasks tasks":                        {`{"tasks":[{"id":"t"}]}`, `{"tasks":[{"kind":"task","id":"t"}]}`, `{"tasks":[{"id":"t"}]}`},
}

// TestMapping checks each row of the table between A2A 1.0 and 0.3, in both directions.
func TestMapping(t *testing.T) {
	samples["configuration taskPushNotificationConfig"] = samples["configuration taskPushNotification"]
	for _, r := range table {
		sample, ok := samples[r.of+" "+r.names[form10]]
		if !ok {
			t.Errorf("the row of %s in %s has no sample", r.names[form10], r.of)
			continue
		}
		var forms [3]wire.Value
		for f, text := range sample {
			var err error
			if forms[f], err = wire.Parse([]byte(text)); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		for _, old := range []form{formRPC, formREST} {
			if got := string(convert(forms[form10], r.of, form10, old).JSON()); got != sample[old] {
				t.Errorf("%s of %s to form %d: %s, want %s", r.names[form10], r.of, old, got, sample[old])
			}
			if got := string(convert(forms[old], r.of, old, form10).JSON()); got != sample[form10] {
				t.Errorf("%s of %s from form %d: %s, want %s", r.names[form10], r.of, old, got, sample[form10])
			}
		}
	}
	for name, old := range map[string]string{
		"TASK_STATE_SUBMITTED": "submitted", "TASK_STATE_WORKING": "working", "TASK_STATE_COMPLETED": "completed", "TASK_STATE_FAILED": "failed", "TASK_STATE_CANCELED": "canceled",
		"TASK_STATE_INPUT_REQUIRED": "input-required", "TASK_STATE_REJECTED": "rejected", "TASK_STATE_AUTH_REQUIRED": "auth-required", "TASK_STATE_UNSPECIFIED": "unknown",
	} {
		if got, back := convertName(name, "state", form10, formRPC), convertName(old, "state", formRPC, form10); got != old || back != name {
			t.Errorf("%s: %s, and back %s", name, got, back)
		}
	}
}

// TestOldParts: what only 1.0 can say reaches a reader of 0.3 as far as it goes.
func TestOldParts(t *testing.T) {
	for text, want := range map[string]string{
		`{"text":"a","mediaType":"text/markdown","filename":"a.md"}`: `{"text":"a","kind":"text"}`,
		`{"data":[1]}`:                         `{"data":{"value":[1]},"kind":"data"}`,
		`{"text":"a","metadata":{"kind":"x"}}`: `{"text":"a","metadata":{"kind":"x"},"kind":"text"}`,
	} {
		v, err := wire.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(convert(v, "part", form10, formRPC).JSON()); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

// TestOldCalls checks the parameters and results of the methods that have another shape in 0.3 (A2A-15).
func TestOldCalls(t *testing.T) {
	for _, tt := range []struct{ method, params, name, read string }{
		{"tasks/get", `{"id":"t","historyLength":1}`, GetTask, `{"id":"t","historyLength":1}`},
		{"tasks/pushNotificationConfig/set", `{"taskId":"t","pushNotificationConfig":{"id":"c","url":"u"}}`, CreatePush, `{"id":"c","url":"u","taskId":"t"}`},
		{"tasks/pushNotificationConfig/get", `{"id":"t","pushNotificationConfigId":"c"}`, GetPush, `{"taskId":"t","id":"c"}`},
		{"message/send", `{"message":{"kind":"message","message_id":"m","role":"user","parts":[{"kind":"text","text":"a"}]}}`, SendMessage, `{"message":{"role":"ROLE_USER","parts":[{"text":"a"}],"messageId":"m"}}`},
	} {
		c, e := ReadRPC([]byte(`{"jsonrpc":"2.0","id":1,"method":"`+tt.method+`","params":`+tt.params+`}`), "0.3")
		if e != nil || c.Method != tt.name || string(c.Params.JSON()) != tt.read {
			t.Errorf("%s: %v, %s %s", tt.method, e, c.Method, c.Params.JSON())
		}
	}
	for _, tt := range []struct{ verb, path, body, name, read string }{
		{"GET", "/v1/tasks/t", "", GetTask, `{"id":"t"}`},
		{"GET", "/v1/card", "", GetExtendedCard, `{}`},
		{"POST", "/v1/message:send", `{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"a"}]},"configuration":{}}`, SendMessage, `{"message":{"role":"ROLE_USER","parts":[{"text":"a"}],"messageId":"m"},"configuration":{"returnImmediately":true}}`},
		{"POST", "/v1/tasks/t/pushNotificationConfigs", `{"name":"x","pushNotificationConfig":{"url":"u"}}`, CreatePush, `{"url":"u","taskId":"t"}`},
	} {
		c, e := ReadREST(tt.verb, tt.path, nil, []byte(tt.body), "")
		if e != nil || c.Method != tt.name || string(c.Params.JSON()) != tt.read {
			t.Errorf("%s: %v, %s %s", tt.path, e, c.Method, c.Params.JSON())
		}
		if _, e := ReadREST(tt.verb, tt.path, nil, []byte(tt.body), "1.0"); e == nil || e.Reason != ErrVersion.Reason {
			t.Errorf("%s with the version 1.0: %v", tt.path, e)
		}
	}
	c, _ := ReadREST("GET", "/v1/tasks/t", nil, nil, "")
	if status, body := c.Refuse(ErrTaskNotFound); status != 404 || string(body[:14]) != `{"code":-32001` {
		t.Errorf("an error of 0.3: %d %s", status, body)
	}
}

// TestSpellings checks that the names of the proto are read as those of its JSON, but not in what is the client's own
// (A2A-16).
func TestSpellings(t *testing.T) {
	v, err := wire.Parse([]byte(`{"message":{"message_id":"m","parts":[{"data":{"a_b":1},"media_type":"a/b"}],"metadata":{"c_d":{"e_f":1}}},"configuration":{"return_immediately":true,"history_length":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"message":{"messageId":"m","parts":[{"data":{"a_b":1},"mediaType":"a/b"}],"metadata":{"c_d":{"e_f":1}}},"configuration":{"returnImmediately":true,"historyLength":2}}`
	if got := string(spell(v).JSON()); got != want {
		t.Errorf("%s", got)
	}
}

// TestManyMembers: an object with many members costs a reader no more than its size, in either version.
func TestManyMembers(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"message_id":"m","message__id":"n"`)
	for i := range 19_000 {
		fmt.Fprintf(&b, `,"a_%d":1`, i)
	}
	for _, method := range []string{"SendMessage", "message/send"} {
		began := time.Now()
		c, e := ReadRPC([]byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"message":`+b.String()+`}}}`), "")
		m, _ := c.Params.Get("message")
		if e != nil || m.Len() < 19_000 || m.GetStr("messageId") != "m" {
			t.Errorf("%s: %v, %d members", method, e, m.Len())
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s took %s", method, took)
		}
		if _, err := wire.ParseForeign(c.Params.JSON(), maxDepth, maxValues); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}
