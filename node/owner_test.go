package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/owner/web"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestOwnerRefuses sends bad requests to the owner API, and checks the status and the part of the message that tells
// the owner what to do.
func TestOwnerRefuses(t *testing.T) {
	t.Parallel()
	mesh := meshtest.InMemory(t)
	chris := mesh.Stranger("chris")
	sarah := mesh.Node("sarah", mode(acl.Approval))
	must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusAccepted)
	ask := theAsk(t, sarah).ID
	long := strings.Repeat("x", 600)
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/inbox?limit=0", "", 400, "limit must be 1 to 1000"},
		{"GET", "/inbox?limit=1001", "", 400, "limit"},
		{"GET", "/inbox?limit=x", "", 400, "limit"},
		{"GET", "/inbox?wait=56", "", 400, "wait must be 0 to 55"},
		{"GET", "/inbox?state=neu", "", 400, "states are new"},
		{"GET", "/outbox?state=gone", "", 400, "states are queued"},
		{"GET", "/approvals?state=open", "", 400, "states are pending"},
		{"GET", "/conversations?state=running", "", 400, "expired"},
		{"GET", "/conversations?before=x", "", 400, "before must be a number"},
		{"GET", "/inbox/in_nothing", "", 404, "no such entry"},
		{"GET", "/inbox/" + long, "", 404, ""},
		{"GET", "/approvals/" + long, "", 404, ""},
		{"GET", "/questions/" + long, "", 404, ""},
		{"GET", "/conversations/" + long, "", 404, ""},
		{"GET", "/conversations/conv_one?peer=" + long, "", 404, ""},
		{"POST", "/inbox/in_nothing/ack", "", 404, "no such entry"},
		{"GET", "/approvals/ask_nothing", "", 404, "no such entry"},
		{"GET", "/conversations/conv_nothing", "", 404, "agentmesh conversations list"},
		{"GET", "/conversations/conv_nothing?peer=" + string(chris.ID), "", 404, ""},
		{"GET", "/conversations/conv_one?peer=nobody", "", 404, "no such peer"},
		{"GET", "/conversations/conv_one?after=x", "", 400, "after must be a number"},
		{"GET", "/inbox?after=nonsense", "", 400, "after must be the id of an inbox item"},
		{"GET", "/outbox?after=nonsense", "", 400, "after must be the id of an outbox entry"},
		{"GET", "/approvals?after=nonsense", "", 400, "after must be the id of a question"},
		{"GET", "/notices?after=nonsense", "", 400, "after must be the id of a notice"},
		{"DELETE", "/conversations/conv_nothing", "", 404, ""},
		{"DELETE", "/conversations/conv_nothing?peer=" + string(chris.ID), "", 404, ""},

		{"POST", "/send", `{`, 400, "strict JSON"},
		{"POST", "/send", `{"to":"nobody","intent":"mesh.message","payload":{}}`, 404, "agentmesh discover"},
		{"POST", "/send", `{"to":"` + long + `","intent":"mesh.message","payload":{}}`, 404, "no such peer"},
		{"POST", "/send", `{"to":"am_unlisted","intent":"mesh.message","payload":` + hello + `}`, 404, "no configured directory"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message"}`, 400, "payload must be a JSON object"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message","payload":"hi"}`, 400, "payload must be a JSON object"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message","payload":{"action":"deliver"}}`, 400, "payload.message"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"message","payload":` + hello + `}`, 400, "com.example.invoice"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message","payload":` + hello + `,"conversation":"one"}`, 400, "leave it out"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message","payload":` + hello + `,"wait_seconds":56}`, 400, "wait_seconds"},
		{"POST", "/send", `{"to":"` + string(chris.ID) + `","intent":"mesh.message","payload":` + hello + `,"wait":5}`, 400, `"wait"`},
		{"POST", "/send", `{"to":1}`, 400, "to has the wrong type: number"},
		{"POST", "/send", `{"to":"` + string(sarah.ID()) + `","intent":"mesh.message","payload":` + hello + `}`, 400, "itself"},
		{"POST", "/reply", `{"payload":` + hello + `}`, 400, "name a conversation"},
		{"POST", "/reply", `{"conversation":"conv_nothing","payload":` + hello + `}`, 404, ""},

		{"POST", "/approvals/" + ask, `{"choice":"maybe","hash":""}`, 409, ""},
		{"POST", "/approvals/" + ask, `{"choice":"approve"}`, 409, "differs from what you were shown"},
		{"POST", "/approvals/" + ask, `{"choise":"approve"}`, 400, `"choise"`},
		{"POST", "/approvals/ask_nothing", `{"choice":"approve","hash":""}`, 404, ""},

		{"POST", "/conversations/conv_one/close", `{"status":"done"}`, 400, "completed or failed"},
		{"POST", "/conversations/conv_one/close", ``, 400, "completed or failed"},
		{"POST", "/conversations/conv_nothing/close", `{"status":"failed"}`, 404, ""},

		{"POST", "/peers", ``, 400, "card or the url"},
		{"POST", "/peers", `{"card":{}}`, 400, "agentmesh card validate"},
		{"POST", "/peers", `{"url":"ftp://example.com"}`, 502, "not an http URL"},
		{"POST", "/peers/" + string(chris.ID), `{"action":"like"}`, 400, "allow, approve, block"},
		{"POST", "/peers/nobody", `{"action":"block"}`, 404, "no such peer"},
		{"POST", "/peers/" + string(chris.ID), `{"action":"alias","alias":"Chris Smith"}`, 400, "a-z 0-9"},
		{"POST", "/peers/" + string(chris.ID), `{"action":"alias","alias":"am_chris"}`, 400, "does not begin with am_"},
		{"POST", "/peers/" + string(chris.ID), `{"action":"alias"}`, 400, "1 to 64"},

		{"POST", "/register", `{"directory":"https://elsewhere.example/v1"}`, 404, ""},
		{"GET", "/discover?limit=101", "", 400, "limit must be 1 to 100"},
		{"GET", "/nothing", "", 404, "no such route"},
		{"PUT", "/send", "", 405, ""},
	} {
		var body []byte
		if c.body != "" {
			body = []byte(c.body)
		}
		before := state(t, sarah)
		a := sarah.Ask(c.method, c.path, body)
		var got struct {
			Error struct{ Code, Message string }
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || got.Error.Code == "" {
			t.Errorf("%s %s %s: %s is not an error body", c.method, c.path, c.body, a.Body)
		}
		if a.Status != c.status || !strings.Contains(got.Error.Message, c.says) {
			t.Errorf("%s %.60s %.80s: %d %s, want %d %q", c.method, c.path, c.body, a.Status, a.Body, c.status, c.says)
		}
		if after := state(t, sarah); after != before {
			t.Errorf("%s %s: state = %s, want %s", c.method, c.path, after, before)
		}
	}
}

// TestOwnerLists: every list has the form {items, next} and pages without a gap or a repetition, and an empty list has
// items.
func TestOwnerLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		empty := mesh.Node("empty", open)
		sarah := mesh.Node("sarah", unlimited)
		long := strings.Repeat("x", 600)
		for i := range 7 {
			chris := mesh.Stranger(fmt.Sprintf("chris-%d", i))
			must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Handoff, talk))), http.StatusAccepted)
			sendAsOwner(t, sarah, chris.ID, "", wire.Deliver, hello)
			sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "alias", "alias": fmt.Sprintf("chris-%d", i)}, nil)
		}
		for path, want := range map[string]int{
			"/inbox?": 7, "/inbox?state=held": 7, "/inbox?state=new": 0, "/approvals?": 7, "/approvals?state=pending": 7,
			"/conversations?": 14, "/conversations?state=open": 14, "/conversations?state=failed": 0, "/outbox?": 7, "/notices?": 7,
			"/inbox?newest=true": 7, "/approvals?newest=true&state=pending": 7, "/approvals?newest=true&state=expired": 0, "/outbox?newest=true": 7, "/notices?newest=true": 7,
			"/peers?": 7, "/discover?": 1,
			"/peers?id=" + long: 0, "/audit?peer=" + long: 0, "/audit?kind=" + long: 0,
		} {
			if a := empty.Ask("GET", path, nil); a.Status != http.StatusOK || !strings.HasPrefix(string(a.Body), `{"items":[`) {
				t.Errorf("%s of a new node: %d %s", path, a.Status, a.Body)
			}
			seen := map[string]bool{}
			cursor := "after"
			if strings.HasPrefix(path, "/conversations") {
				cursor = "before"
			}
			for after, pages := "", 0; pages < 20; pages++ {
				var page struct {
					Items []json.RawMessage
					Next  json.RawMessage
				}
				if sarah.Call("GET", path+"&limit=3&"+cursor+"="+after, nil, &page); len(page.Items) > 3 && want > 1 && !strings.HasPrefix(path, "/peers") {
					t.Errorf("%s: a page of %d", path, len(page.Items))
				}
				for _, item := range page.Items {
					if seen[string(item)] {
						t.Errorf("%s: %s comes twice", path, item)
					}
					seen[string(item)] = true
				}
				if after = strings.Trim(string(page.Next), `"`); after == "" {
					break
				}
			}
			if len(seen) != want {
				t.Errorf("%s: %d entries, want %d", path, len(seen), want)
			}
		}
	})
}

// TestOwnerNamesThings: the owner may use aliases and unique beginnings of ids, also if two peers use the same
// conversation id.
func TestOwnerNamesThings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris, tom := mesh.Stranger("chris"), mesh.Stranger("tom")
		sarah := mesh.Node("sarah", unlimited)
		var first string
		for _, who := range []*meshtest.Stranger{chris, tom} {
			must(t, sarah.Post(who.Sign(in("conv_same", who.Draft(sarah.ID(), wire.Handoff, talk)))), http.StatusAccepted)
			must(t, sarah.Post(who.Sign(in(wire.ConversationID("conv_of-"+who.Name), who.Draft(sarah.ID(), wire.Deliver, hello)))), http.StatusOK)
			if first == "" {
				first = theAsk(t, sarah).ID
			}
			time.Sleep(time.Hour)
		}
		sarah.Call("POST", "/peers/"+string(chris.ID), map[string]string{"action": "alias", "alias": "c"}, nil)
		items, _, err := sarah.Inbox(t.Context(), "", "", 10)
		if err != nil {
			t.Fatal(err)
		}
		common := 0 // length of the common beginning of all ids
		for items[0].ID[common] == items[len(items)-1].ID[common] {
			common++
		}
		for path, status := range map[string]int{
			"/conversations/conv_of-chris":                        200,
			"/conversations/conv_of-c":                            200,
			"/conversations/of-t":                                 200,
			"/conversations/conv_of":                              409,
			"/conversations/conv_same":                            409,
			"/conversations/conv_same?peer=c":                     200,
			"/conversations/conv_sa?peer=c":                       200,
			"/conversations/conv_same?peer=" + string(tom.ID):     200,
			"/conversations/conv_of-chris?peer=" + string(tom.ID): 404,
			"/approvals/" + first:                                 200,
			"/approvals/" + first[:len(first)-4]:                  200,
			"/approvals/ask_":                                     409,
			"/inbox/" + items[3].ID[:len(items[3].ID)-2]:          200,
			"/inbox/" + items[3].ID[:common]:                      409,
		} {
			if a := sarah.Ask("GET", path, nil); a.Status != status {
				t.Errorf("%s: %d %s, want %d", path, a.Status, a.Body, status)
			}
		}
		lone := mesh.Node("lone", unlimited)
		must(t, lone.Post(chris.Sign(chris.Draft(lone.ID(), wire.Deliver, hello))), http.StatusOK)
		if a := lone.Ask("POST", "/inbox//ack", nil); a.Status != http.StatusNotFound {
			t.Errorf("an empty id acknowledged the only item: %d %s", a.Status, a.Body)
		}
		var sent owner.Sent
		sarah.Call("POST", "/send", map[string]any{"to": "c", "intent": "mesh.message", "payload": json.RawMessage(hello)}, &sent)
		if sent.State != owner.SendQueued || !sent.Conversation.Valid() {
			t.Errorf("sent to an alias = %+v", sent)
		}
		sarah.Call("POST", "/peers/c", map[string]string{"action": "block"}, nil)
		if a := sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))); a.Code() != wire.Unauthorized {
			t.Errorf("blocked by alias: %d %s", a.Status, a.Body)
		}
		for path, id := range map[string]string{"mew:lab%2Fbob": "mew:lab/bob", "mew:lab%2Fb%2541": "mew:lab/b%41"} { // as the command does
			var blocked struct{ ID string }
			if sarah.Call("POST", "/peers/"+path, map[string]string{"action": "block"}, &blocked); blocked.ID != id {
				t.Errorf("blocked %s, want %s", blocked.ID, id)
			}
		}
		var peers struct {
			Items []struct {
				ID       string
				Aliases  []string
				Standing string
			}
		}
		sarah.Call("GET", "/peers", nil, &peers)
		found := false
		for _, p := range peers.Items {
			found = found || p.ID == string(chris.ID) && len(p.Aliases) == 1 && p.Aliases[0] == "c" && p.Standing == "blocked"
		}
		if !found {
			t.Errorf("peers = %+v", peers)
		}
		for id, want := range map[string]int{string(chris.ID): 1, "am_nobody": 0} {
			peers.Items = nil
			if sarah.Call("GET", "/peers?id="+id, nil, &peers); len(peers.Items) != want || want > 0 && (peers.Items[0].ID != id || peers.Items[0].Standing != "blocked") {
				t.Errorf("the peer %s = %+v", id, peers)
			}
		}
		damaged := store.Change{IfRev: store.Any, Record: store.Record{NS: "rules", Key: "am_other", Body: []byte("damaged")}}
		if err := sarah.Store.Records().Apply(t.Context(), []store.Change{damaged}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if one, err := sarah.OwnerAPI().ListPeers(t.Context(), string(chris.ID)); err != nil || len(one) != 1 || len(one[0].Aliases) != 1 {
			t.Errorf("a peer beside a damaged rule = %+v, %v", one, err)
		}
		sarah.Call("POST", "/peers/c", map[string]string{"action": "forget"}, nil)
		if a := sarah.Ask("POST", "/peers/c", []byte(`{"action":"block"}`)); a.Status != http.StatusNotFound {
			t.Errorf("alias of a forgotten peer: %d %s", a.Status, a.Body)
		}
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
	})
}

// TestOwnerWaitsForTheInbox: a long poll ends with the first message, or empty when its time is up.
func TestOwnerWaitsForTheInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		chris := mesh.Stranger("chris")
		sarah := mesh.Node("sarah", open)
		begun := time.Now()
		if a := sarah.Ask("GET", "/inbox?wait=10", nil); string(a.Body) != "{\"items\":[]}\n" || time.Since(begun) != 10*time.Second {
			t.Errorf("nothing came: %s after %s", a.Body, time.Since(begun))
		}
		polled := make(chan meshtest.Answer, 1)
		go func() { polled <- sarah.Ask("GET", "/inbox?state=new&wait=55", nil) }()
		time.Sleep(5 * time.Second)
		must(t, sarah.Post(chris.Sign(chris.Draft(sarah.ID(), wire.Deliver, hello))), http.StatusOK)
		begun = time.Now()
		if a := <-polled; !strings.Contains(string(a.Body), "hello") || time.Since(begun) != 0 {
			t.Errorf("a message came: %s after %s", a.Body, time.Since(begun))
		}
		id := theItem(t, sarah).ID
		var item node.Item
		for range 2 { // a second acknowledgement changes nothing
			if sarah.Call("POST", "/inbox/"+id+"/ack", nil, &item); item.State != owner.ItemRead {
				t.Errorf("acknowledged item = %+v", item)
			}
		}
	})
}

// TestHostileTextIsData (THREATS 28): the owner API returns names and bodies as JSON strings, with control characters
// escaped, and no part of them gets into another field.
func TestHostileTextIsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		name := "chris\x1b[2J\"},{\"standing\":\"allowed\u202e</script>"
		chris := mesh.Stranger(name)
		sarah := mesh.Node("sarah", mode(acl.Approval))
		payload := `{"action":"deliver","message":{"body":"\u001b]0;owned\u0007\u202e"},"note":"</script>"}`
		must(t, sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, payload)))), http.StatusAccepted)
		for _, path := range []string{"/inbox", "/approvals", "/conversations", "/conversations/conv_one", "/notices", "/peers", "/discover", "/status"} {
			a := sarah.Ask("GET", path, nil)
			if a.Status != http.StatusOK || !json.Valid(a.Body) || strings.ContainsAny(string(a.Body), "\x1b\x07") {
				t.Errorf("%s: %d %q", path, a.Status, a.Body)
			}
		}
		var inbox struct{ Items []node.Item }
		sarah.Call("GET", "/inbox", nil, &inbox)
		if len(inbox.Items) != 1 || inbox.Items[0].PeerName != name {
			t.Errorf("inbox = %+v, want the name as it is on the card", inbox)
		}
	})
}

// ownerPage returns the HTML of one of the owner's pages.
func ownerPage(t *testing.T, m *meshtest.Member, path string) string {
	t.Helper()
	private := httpapi.NewOwner(httpapi.OwnerConfig{})
	web.Mount(private.Pages(), m.OwnerAPI(), nil, nil)
	rec := httptest.NewRecorder()
	private.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, httpapi.PagePath+"/"+path, nil))
	if rec.Code != http.StatusOK {
		t.Fatalf("page %s: %d %s", path, rec.Code, rec.Body)
	}
	return rec.Body.String()
}
