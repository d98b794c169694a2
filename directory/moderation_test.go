package directory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// operate sends a request to the owner API, checks its status and decodes the response.
func operate[T any](w *world, status int, method, path, body string) T {
	w.t.Helper()
	got := send(w.owner.Handler(), method, "/owner"+path, body)
	if got.Code != status {
		w.t.Errorf("%s %s %s = %d %s, want %d", method, path, body, got.Code, got.Body, status)
	}
	var doc T
	if got.Body.Len() > 0 {
		if err := json.Unmarshal(got.Body.Bytes(), &doc); err != nil {
			w.t.Errorf("%s %s answers %s: %v", method, path, got.Body, err)
		}
	}
	return doc
}

// TestBans: each kind of ban gives the same response to new cards and renewals, and removes the party's cards.
func TestBans(t *testing.T) {
	var decisions []moderation.Decision
	w := newWorld(t, func(c *Config) {
		c.Audit = func(d moderation.Decision) store.Change {
			decisions = append(decisions, d)
			return store.Change{Record: store.Record{NS: "test-audit", Key: fmt.Sprint(len(decisions))}}
		}
	})
	evil := testCard("am_evil", text("endpoint", "https://a.b.evil.example/x"))
	w.register(alice, evil)
	w.register(alice, testCard("am_good"))
	answers := map[string]bool{}
	refused := func(what string, card wire.Value, header ...string) {
		t.Helper()
		for method, path := range map[string]string{"POST": "/v1/agents", "PUT": "/v1/agents/" + card.GetStr("agent_id")} {
			if got := w.do(method, path, string(card.JSON()), append(withBearer(alice), header...)...); method == "POST" || got.Code != 404 {
				want(t, got, 403, "UNAUTHORIZED")
				answers[got.Body.String()] = true
				if strings.Contains(got.Body.String(), "spam") || strings.Contains(got.Body.String(), what) {
					t.Errorf("ban of %s shows: %s", what, got.Body)
				}
			}
		}
	}
	ban := func(what string) orderResult {
		return operate[orderResult](w, 200, "POST", "/directory/bans", fmt.Sprintf(`{"what":%q,"reason":"spam"}`, what))
	}
	if done := ban("evil.example"); done.Removed != 1 || done.Ban.Kind != moderation.BanHost {
		t.Errorf("ban of the host = %+v", done)
	}
	want(t, w.do("GET", "/v1/agents/am_evil", ""), 404, "AGENT_UNAVAILABLE")
	refused("evil.example", evil)
	refused("evil.example", testCard("am_other", text("endpoint", "https://EVIL.example/")))
	for _, variant := range []string{"https://evil.example./", "https://ｅvil.example/", "https://evil。example/", "https://x.EVIL.example.:8443/"} {
		refused("evil.example", testCard("am_other", text("endpoint", variant)))
	}
	w.register(alice, testCard("am_devil", text("endpoint", "https://devil.example/")))

	if done := ban("am_good"); done.Removed != 1 {
		t.Errorf("ban of the id = %+v", done)
	}
	refused("am_good", testCard("am_good"))

	w.register(alice, testCard("am_key"))
	w.register(bob, testCard("am_key2", text("public_key", testKey("am_key").PublicText())))
	if done := ban(listing.Fingerprint(testKey("am_key").Public())); done.Removed != 2 {
		t.Errorf("ban of the key = %+v", done)
	}
	refused("fingerprint", testCard("am_key3", text("public_key", testKey("am_key").PublicText())))

	ban("2001:db8::/32")
	refused("2001", testCard("am_addr"), "Remote", "[2001:db8:1::7]:4711")
	if got := w.do("POST", "/v1/agents", string(testCard("am_addr").JSON()), append(withBearer(alice), "Remote", "[2001:db9::7]:4711")...); got.Code != 201 {
		t.Errorf("from elsewhere = %d", got.Code)
	}
	if len(answers) != 1 {
		t.Errorf("banned parties get %d answers, want one: %v", len(answers), answers)
	}
	got, _ := w.changes("", 100)
	if !cmp.Equal(got[len(got)-6:], []string{
		"removed am_evil: spam", "registered am_devil", "removed am_good: spam", "removed am_key: spam", "removed am_key2: spam", "registered am_addr",
	}) {
		t.Errorf("the feed has %q", got)
	}
	list := operate[banList](w, 200, "GET", "/directory/bans", "")
	if len(list.Bans) != 4 || list.Bans[0].Reason != "spam" || list.Bans[0].At.IsZero() {
		t.Errorf("bans: %+v", list)
	}
	operate[orderResult](w, 200, "POST", "/directory/bans/lift", `{"what":"evil.example","reason":"sorry"}`)
	w.register(alice, evil)
	operate[orderResult](w, 404, "POST", "/directory/bans/lift", `{"what":"evil.example","reason":"sorry"}`)
	for _, bad := range []string{`{"what":"am_x"}`, `{"reason":"x"}`, `{"what":"x y","reason":"x"}`, `{"what":"am_x","reason":"` + strings.Repeat("x", 301) + `"}`} {
		operate[orderResult](w, 400, "POST", "/directory/bans", bad)
	}
	var lines []string
	for _, d := range decisions {
		lines = append(lines, d.Choice+" "+d.Subject)
	}
	if len(decisions) != 4+4+1 || lines[0] != "banned host:evil.example" || lines[1] != "removed am_evil" || decisions[1].Note != "spam" {
		t.Errorf("audited: %q", lines)
	}
}

// TestBansOfAnother: a ban by another instance on the same store takes effect here within seconds.
func TestBansOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		other := newWorldOver(t, w.store)
		w.register(alice, testCard("am_1"))
		if _, err := other.reg.Ban(t.Context(), moderation.Ban{Kind: moderation.BanID, Value: "am_1", Reason: "x"}, "cli"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(moderation.BanCacheTime)
		want(t, w.do("POST", "/v1/agents", string(testCard("am_1").JSON()), withBearer(alice)...), 403, "UNAUTHORIZED")
	})
}

func TestRemove(t *testing.T) {
	w := newWorldWithCards(t, 2)
	operate[orderResult](w, 200, "POST", "/directory/cards/am_000/remove", `{"reason":"asked by mail"}`)
	want(t, w.do("GET", "/v1/agents/am_000", ""), 404, "AGENT_UNAVAILABLE")
	want(t, w.do("POST", "/v1/agents", string(testCard("am_000").JSON()), withBearer(bob)...), 409, "") // still its owner's
	operate[orderResult](w, 404, "POST", "/directory/cards/am_000/remove", `{"reason":"again"}`)
	operate[orderResult](w, 400, "POST", "/directory/cards/am_001/remove", `{}`)
	w.register(alice, testCard("am_000"))
	list := operate[OperatorCardPage](w, 200, "GET", "/directory/cards?q=agent", "")
	if len(list.Cards) != 2 || list.Cards[0].Host != "am-000.example" || len(list.Cards[0].Key) != 64 || list.Cards[0].Owner != list.Cards[1].Owner {
		t.Errorf("cards: %+v", list)
	}
}

// TestReports: reports by strangers reach the operator, within the bounds.
func TestReports(t *testing.T) {
	var notices *notify.Box
	w := newWorldWithCards(t, 60, func(c *Config) {
		notices = notify.New(notify.Config{Records: c.Store.Records()})
		c.Notices = notices
	})
	listNotices := func() []notify.Notice {
		t.Helper()
		list, _, err := notices.List(t.Context(), "", 1000, wire.Now())
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	report := func(id, remote, body string) int {
		return w.do("POST", "/v1/agents/"+id+"/reports", body, "Remote", remote+":1").Code
	}
	if got := report("am_000", "192.0.2.1", `{"kind":"spam","text":" buys \u001b[31m "}`); got != http.StatusAccepted {
		t.Errorf("report = %d", got)
	}
	if got := report("am_000", "192.0.2.1", `{"kind":"malicious"}`); got != http.StatusAccepted { // replaces the first
		t.Errorf("second report = %d", got)
	}
	list := operate[reportPage](w, 200, "GET", "/directory/reports?agent_id=am_000", "")
	if len(list.Reports) != 1 || list.Reports[0].Kind != "malicious" || list.Reports[0].From != "192.0.2.1" {
		t.Errorf("reports: %+v", list)
	}
	if list := listNotices(); len(list) != 1 || list[0].Kind != "reported" || list[0].Peer != "am_000" || strings.Contains(list[0].Text, "buys") {
		t.Errorf("the operator gets the notices %+v", list) // want one, without text of a stranger
	}
	for body, status := range map[string]int{
		`{"kind":"dull"}`: 400, `{}`: 400, `{"kind":"spam","text":"` + strings.Repeat("x", 1001) + `"}`: 400, `[]`: 400, `{"kind":"spam","kind":"other"}`: 400,
		`{"kind":"spam","text":"` + strings.Repeat("x", 5000) + `"}`: 413,
	} {
		if got := report("am_000", "192.0.2.2", body); got != status {
			t.Errorf("report %.40s = %d, want %d", body, got, status)
		}
	}
	if got := report("am_none", "192.0.2.2", `{"kind":"spam"}`); got != 404 {
		t.Errorf("report of nobody = %d", got)
	}
	taken := 0
	for i := range 40 { // one card, many addresses of different networks
		if report("am_001", fmt.Sprintf("198.51.100.%d", i), `{"kind":"spam"}`) == 202 {
			taken++
		}
	}
	if taken != maxPerCard {
		t.Errorf("one card got %d reports, want %d", taken, maxPerCard)
	}
	taken = 0
	for i := range 40 { // one /64, many cards
		if report(fmt.Sprintf("am_%03d", i+10), fmt.Sprintf("[2001:db8::%x]", i), `{"kind":"spam"}`) == 202 {
			taken++
		}
	}
	if taken != reportsPerHour {
		t.Errorf("one network made %d reports, want %d", taken, reportsPerHour)
	}
	// Many cards, many networks. Most reports go to the store directly, to save time.
	number := func(i int) (id string, from netip.Addr) {
		return fmt.Sprintf("am_%03d", 2+i%58), netip.AddrFrom4([4]byte{10, byte(i / 20), byte(i % 20), 1})
	}
	var stored []store.Change
	for i := range maxReports - 100 {
		id, addr := number(i)
		key := credential.HashOf(id + " " + addressKey(addr)).Name()
		body, err := json.Marshal(Report{ID: key, AgentID: wire.AgentID(id), Kind: "other", From: addressKey(addr), At: wire.Now()})
		if err != nil {
			t.Fatal(err)
		}
		rec := store.Record{NS: reportNS, Key: key, Body: body, Terms: []string{"card:" + id}, Expires: wire.Now().Add(reportLife)}
		stored = append(stored, store.Change{Record: rec})
	}
	if err := w.store.Records().Apply(t.Context(), stored, wire.Now()); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		id, addr := number(maxReports - 100 + i)
		_ = w.reg.Report(t.Context(), wire.AgentID(id), ReportRequest{Kind: "other"}, addr)
	}
	n := 0
	for after := ""; ; {
		page := operate[reportPage](w, 200, "GET", "/directory/reports?after="+after, "")
		n += len(page.Reports)
		if after = page.Next; after == "" {
			break
		}
	}
	if n != maxReports {
		t.Errorf("%d reports are kept, want %d", n, maxReports)
	}
	if n := len(listNotices()); n > 61 {
		t.Errorf("the operator gets %d notices within the hour", n)
	}
	operate[struct{}](w, 204, "DELETE", "/directory/reports/"+list.Reports[0].ID, "")
	operate[struct{}](w, 404, "DELETE", "/directory/reports/"+list.Reports[0].ID, "")
}

// TestExportImport moves a directory: owners keep their cards, and cards keep their order and proofs.
func TestExportImport(t *testing.T) {
	from, to := newWorldWithCards(t, 250), newWorld(t)
	to.register(bob, testCard("am_007", text("name", "Another")))
	operate[orderResult](to, 200, "POST", "/directory/bans", `{"what":"am_009","reason":"x"}`)
	var total ImportResult
	after := uint64(0)
	for {
		page := operate[ExportPage](from, 200, "GET", fmt.Sprint("/directory/export?after=", after), "")
		order, err := json.Marshal(importOrder{page.Cards, "move"})
		if err != nil {
			t.Fatal(err)
		}
		done := operate[ImportResult](to, 200, "POST", "/directory/import", string(order))
		total.Add(done)
		if after = page.After; after == 0 {
			break
		}
	}
	reasons := map[string]int{"the id is registered or reserved here": 1, "the operator does not list this card": 1}
	if want := (ImportResult{Added: 248, Skipped: 1, Refused: 1, Reasons: reasons}); !cmp.Equal(total, want) {
		t.Errorf("import = %+v, want %+v", total, want)
	}
	want(t, to.do("PUT", "/v1/agents/am_100", "", withBearer(bob)...), 403, "")
	want(t, to.do("PUT", "/v1/agents/am_100", "", withBearer(alice)...), 200, "")
	a, b := from.do("GET", "/v1/agents/am_042/record", "").Body.String(), to.do("GET", "/v1/agents/am_042/record", "").Body.String()
	if a != b {
		t.Errorf("record before %s and after %s", a, b)
	}
	if lines, _ := to.changes("", 100); !slices.Contains(lines, "registered am_042") {
		t.Errorf("the feed does not have the registration of an imported card: %.300q", lines)
	}
	operate[ImportResult](to, 400, "POST", "/directory/import", `{"cards":[],"reason":""}`)
	operate[ImportResult](to, 400, "POST", "/directory/import", `{"cards":`)
}

// TestImportLargestCards moves cards of the largest depth and number of values, with as many earlier ones as a
// directory keeps.
func TestImportLargestCards(t *testing.T) {
	from, to := newWorld(t), newWorld(t)
	deep := wire.Int(1)
	for range wire.MaxDepth - 1 {
		deep = wire.Arr(deep)
	}
	wide := wire.Arr(slices.Repeat([]wire.Value{wire.Int(1)}, listing.MaxRetiredCard/2-500)...)
	card := testCard("am_x", wire.Field("deep", deep), wire.Field("wide", wide))
	from.register(alice, card)
	key := testKey("am_x")
	for i := range listing.MaxRetired + 1 {
		next := testKey(fmt.Sprint(i))
		card = card.With("public_key", wire.Text(next.PublicText()))
		now := time.Now()
		header := append(withBearer(alice), wire.HeaderKeyProof, proof(next, "PUT", "/v1/agents/am_x", testBase, now, card),
			wire.HeaderPreviousKeyProof, proof(key, "PUT", "/v1/agents/am_x", testBase, now, card))
		want(t, from.do("PUT", "/v1/agents/am_x", string(card.JSON()), header...), 200, "")
		key = next
	}
	line := operate[ExportPage](from, 200, "GET", "/directory/export", "").Cards[0]
	order, err := json.Marshal(importOrder{slices.Repeat([]CardExport{line}, 20), "move"})
	if err != nil {
		t.Fatal(err)
	}
	if done := operate[ImportResult](to, 200, "POST", "/directory/import", string(order)); !cmp.Equal(done, ImportResult{Added: 1, Skipped: 19, Reasons: map[string]int{"the id is registered or reserved here": 19}}) {
		t.Errorf("import = %+v", done)
	}
	if a, b := from.do("GET", "/v1/agents/am_x/keys", "").Body.String(), to.do("GET", "/v1/agents/am_x/keys", "").Body.String(); a != b || len(a) < listing.MaxRetired*listing.MaxRetiredCard/2 {
		t.Errorf("keys before %s and after %s", a, b)
	}
}

// TestBanOfMappedNetwork: a range of IPv4 addresses that is written as IPv6 bans these addresses, and no others.
func TestBanOfMappedNetwork(t *testing.T) {
	w := newWorld(t)
	operate[orderResult](w, 200, "POST", "/directory/bans", `{"what":"::ffff:192.0.2.0/120","reason":"spam"}`)
	for remote, status := range map[string]int{"192.0.2.7:4711": 403, "[::ffff:192.0.2.9]:4711": 403, "192.0.3.7:4711": 201, "[2001:db8::7]:4711": 201} {
		id := fmt.Sprintf("am_%x", remote)
		if got := w.do("POST", "/v1/agents", string(testCard(id).JSON()), append(withBearer(alice), "Remote", remote)...); got.Code != status {
			t.Errorf("from %s = %d, want %d", remote, got.Code, status)
		}
	}
}

// TestImportWithoutStore: a card that could not be checked is not counted as one that breaks a rule.
func TestImportWithoutStore(t *testing.T) {
	page, err := newWorldWithCards(t, 1).reg.Export(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the store refuses to list the bans
	if done, err := newWorld(t).reg.Import(ctx, page.Cards, "move", "cli"); !errors.Is(err, context.Canceled) || !cmp.Equal(done, ImportResult{}) {
		t.Errorf("import = %+v, %v", done, err)
	}
}

// TestImportBadMeta: a line without readable metadata costs only its card.
func TestImportBadMeta(t *testing.T) {
	page, err := newWorldWithCards(t, 3).reg.Export(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	page.Cards[0].Meta, page.Cards[1].Meta = nil, []byte(`{"proven":"yesterday"}`)
	done, err := newWorld(t).reg.Import(t.Context(), page.Cards, "move", "cli")
	if err != nil || done.Added != 1 || done.Refused != 2 {
		t.Errorf("import = %+v, %v", done, err)
	}
}

// brokenCards refuses to store the card of an agent.
type brokenCards struct {
	store.Cards
	id string
}

func (b brokenCards) Put(ctx context.Context, p store.PutCard) (store.Card, error) {
	if p.Card.ID == b.id {
		return store.Card{}, store.ErrUnavailable
	}
	return b.Cards.Put(ctx, p)
}

// TestImportStops: the cards that were added before the store failed are in the audit log.
func TestImportStops(t *testing.T) {
	page, err := newWorldWithCards(t, 3).reg.Export(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var decisions []moderation.Decision
	w := newWorld(t, func(c *Config) {
		c.Audit = func(d moderation.Decision) store.Change {
			decisions = append(decisions, d)
			return store.Change{Record: store.Record{NS: "test", Key: "audit"}, IfRev: store.Any}
		}
	})
	w.reg.cards = brokenCards{w.reg.cards, "am_002"}
	done, err := w.reg.Import(t.Context(), page.Cards, "move", "cli")
	if !errors.Is(err, store.ErrUnavailable) || done.Added != 2 {
		t.Errorf("import = %+v, %v", done, err)
	}
	if len(decisions) != 1 || decisions[0].Note != "2 cards: move" {
		t.Errorf("audited: %+v", decisions)
	}
}

// TestBannedAtTheRelay: a banned party cannot send messages or reports, and a ban empties the mailbox.
func TestBannedAtTheRelay(t *testing.T) {
	w := newRelayWorld(t)
	wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("1", "am_bob", "am_alice")), 202)
	wantReceipt(t, w.do("POST", "/v1/mailbox/am_carol", testMessage("2", "am_bob", "am_carol")), 202)
	ban := func(what string) {
		t.Helper()
		operate[orderResult](w, 200, "POST", "/directory/bans", fmt.Sprintf(`{"what":%q,"reason":"spam"}`, what))
	}
	ban("am_bob")
	want(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("3", "am_bob", "am_alice")), 403, "UNAUTHORIZED")
	want(t, w.do("POST", "/v1/relay", testMessage("4", "am_bob", "am_alice"), withBearer(bob)...), 403, "UNAUTHORIZED")
	ban("198.51.100.0/24")
	remote := []string{"Remote", "198.51.100.7:1"}
	want(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("5", "am_carol", "am_alice"), remote...), 403, "UNAUTHORIZED")
	want(t, w.do("POST", "/v1/agents/am_alice/reports", `{"kind":"spam"}`, remote...), 403, "UNAUTHORIZED")
	wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("5", "am_carol", "am_alice")), 202)
	if got := w.mail(alice, ""); len(got) != 2 {
		t.Errorf("%d messages wait for Alice", len(got))
	}
	ban("am_carol")
	if all := w.countMail(); all.N != 2 {
		t.Errorf("%d messages wait, want 2 and none for the banned agent", all.N)
	}
}

// TestBanOfPrivateEndpoint: a ban of addresses also applies to endpoints there, which the operator admits by their
// network, but not to mailboxes of the directory itself.
func TestBanOfPrivateEndpoint(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.AllowPrivate, c.BaseURL = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, "https://10.1.2.3/v1"
	})
	banned, other := testCard("am_banned", text("endpoint", "https://10.1.2.3/a")), testCard("am_other", text("endpoint", "https://10.1.2.4/a"))
	w.register(alice, banned)
	w.register(alice, other)
	if done := operate[orderResult](w, 200, "POST", "/directory/bans", `{"what":"10.1.2.3","reason":"spam"}`); done.Removed != 1 {
		t.Errorf("the ban removed %d cards, want 1", done.Removed)
	}
	want(t, w.do("GET", "/v1/agents/am_banned", ""), 404, "")
	want(t, w.do("POST", "/v1/agents", string(banned.JSON()), withBearer(alice)...), 403, "UNAUTHORIZED")
	want(t, w.do("PUT", "/v1/agents/am_other", string(other.JSON()), withBearer(alice)...), 200, "")
	w.register(alice, testCard("am_box", text("endpoint", "https://10.1.2.3/v1/mailbox/am_box"))) // the directory's own address
}

// TestWhyRemoved: whoever asks for a card that the operator removed gets the reason, in one line, until its owner
// registers it again.
func TestWhyRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.register(alice, testCard("am_a"))
		if err := w.reg.Remove(t.Context(), "am_a", "spam\n"+hostile, "cli"); err != nil {
			t.Fatal(err)
		}
		rec := w.do("GET", "/v1/agents/am_a", "")
		want(t, rec, 404, "AGENT_UNAVAILABLE")
		if body := rec.Body.String(); !goldentest.Says(t, "removed", body) || strings.ContainsAny(body, "\u202e\x1b") || strings.Contains(body, `\n`) {
			t.Errorf("the answer is %s", body)
		}
		time.Sleep(time.Minute)
		w.register(alice, testCard("am_a"))
		want(t, w.do("DELETE", "/v1/agents/am_a", "", withBearer(alice)...), 204, "")
		for _, id := range []string{"am_a", "am_none"} {
			if rec := w.do("GET", "/v1/agents/"+id, ""); rec.Code != 404 || !goldentest.Says(t, id, rec.Body.String()) {
				t.Errorf("%s = %d %s", id, rec.Code, rec.Body)
			}
		}
	})
}
