package operator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/directory/operator"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

const hostile = "<script>alert(1)</script>\u202eevil\x1b[2J"

// world is a directory with its operator's pages.
type world struct {
	t      *testing.T
	reg    *directory.Registry
	public http.Handler
	owner  *httpapi.Owner
}

func newWorld(t *testing.T, owner httpapi.OwnerConfig, change ...func(*directory.Config)) *world {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{MinFree: -1, InitialMmapSize: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	cfg := directory.Config{
		Store: db, BaseURL: "https://directory.example/v1", Mode: directory.Open, Quotas: directory.Quotas{PerToken: -1, PerHost: -1, PerHour: -1},
	}
	for _, f := range change {
		f(&cfg)
	}
	edge := httpapi.New(httpapi.Config{RequestsPerMinute: -1})
	w := &world{t: t, reg: directory.New(cfg), public: edge.Handler(), owner: httpapi.NewOwner(owner)}
	w.reg.Mount(edge.Echo())
	operator.Mount(w.owner.Pages(), operator.Config{Directory: w.reg, Name: "Agents of Cork", Alone: true})
	return w
}

// register registers a card with these members beside the usual ones.
func (w *world) register(id, name, description string) {
	w.t.Helper()
	card, err := json.Marshal(map[string]any{
		"agentmesh": wire.Version, "agent_id": id, "name": name, "description": description, "endpoint": "https://" + strings.ReplaceAll(id, "_", "-") + ".example/agentmesh",
		"public_key": "ed25519:Bxu5qIntwmDJmYhr4/85wzg/zmAa4b1mgyAM0TvUcyk=", "capabilities": []string{"x"}, "intents": []string{"mesh.message"},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/v1/agents", strings.NewReader(string(card)))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer alice-credential-1")
	got := httptest.NewRecorder()
	if w.public.ServeHTTP(got, r); got.Code != 201 {
		w.t.Fatalf("register %s = %d %s", id, got.Code, got.Body)
	}
}

// get returns a page.
func (w *world) get(path string) string {
	w.t.Helper()
	got := httptest.NewRecorder()
	w.owner.Handler().ServeHTTP(got, httptest.NewRequest("GET", path, nil))
	if got.Code != 200 || !strings.HasPrefix(got.Header().Get("Content-Type"), "text/html") {
		w.t.Fatalf("GET %s = %d %s", path, got.Code, got.Body)
	}
	return got.Body.String()
}

// post sends a form and returns the answer. A redirect is followed.
func (w *world) post(path string, values ...string) (int, string) {
	w.t.Helper()
	form := url.Values{}
	for i := 0; i < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	r := httptest.NewRequest("POST", "/owner/page/directory/"+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	got := httptest.NewRecorder()
	w.owner.Handler().ServeHTTP(got, r)
	if got.Code == http.StatusSeeOther {
		return got.Code, w.get(got.Header().Get("Location"))
	}
	return got.Code, got.Body.String()
}

// TestOperatorActs: the operator removes, bans, lifts, dismisses, issues and revokes on the pages, and the directory
// obeys.
func TestOperatorActs(t *testing.T) {
	var audited []string
	w := newWorld(t, httpapi.OwnerConfig{}, func(c *directory.Config) {
		c.Mode = directory.Invite
		c.Audit = func(d moderation.Decision) store.Change {
			audited = append(audited, d.Choice+" "+d.By)
			return store.Change{Record: store.Record{NS: "test-audit", Key: fmt.Sprint(len(audited))}}
		}
	})
	code, page := w.post("invites", "action", "make", "label", "for Sarah", "uses", "3", "days", "7")
	secret := regexp.MustCompile(`aria-label="Link to join">https://directory\.example/join#([A-Z2-7]{26,})<`).FindStringSubmatch(page)
	if code != 200 || secret == nil || !strings.Contains(page, "for Sarah") || !strings.Contains(page, "3 cards left") || !strings.Contains(page, `aria-label="QR code of the link"`) {
		t.Fatalf("a new code = %d\n%s", code, page)
	}
	list := w.get("/owner/page/directory/invites")
	if strings.Contains(list, secret[1]) {
		t.Error("the code is shown again")
	}
	id := regexp.MustCompile(`name="code" value="([^"]+)"`).FindStringSubmatch(list)
	if code, page := w.post("invites", "action", "revoke", "code", id[1]); code != 303 || strings.Contains(page, "for Sarah") {
		t.Errorf("revoke = %d\n%s", code, page)
	}

	if want := []string{"token-issued page", "token-revoked page"}; !slices.Equal(audited, want) {
		t.Errorf("audited: %q, want %q", audited, want)
	}

	w = newWorld(t, httpapi.OwnerConfig{})
	for i := range 30 {
		w.register(fmt.Sprintf("am_%02d", i), "One of many", "")
	}
	more := regexp.MustCompile(`href="(/owner/page/directory/cards\?[^"]+)" rel="next"`).FindStringSubmatch(w.get("/owner/page/directory/cards"))
	if more == nil || strings.Count(w.get(strings.ReplaceAll(more[1], "&amp;", "&")), `<li>`) < 5 {
		t.Errorf("the second page: %v", more)
	}
	if err := w.reg.Report(t.Context(), "am_01", directory.ReportRequest{Kind: "spam", Text: hostile}, netip.MustParseAddr("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	reports := w.get("/owner/page/directory/reports")
	if !strings.Contains(reports, `spam: <span class="face"`) || !strings.Contains(reports, "am_01") || !strings.Contains(reports, "192.0.2.7") || !strings.Contains(w.get("/owner/page/directory"), ">1</b> <span>report<") {
		t.Errorf("the report is missing:\n%s", reports)
	}
	id = regexp.MustCompile(`name="report" value="([^"]+)"`).FindStringSubmatch(reports)
	if code, page := w.post("reports", "report", id[1]); code != 303 || !goldentest.Page(t, "dismiss the only report", page) {
		t.Errorf("dismiss = %d\n%s", code, page)
	}
	if code, _ := w.post("cards", "action", "remove", "agent", "am_02", "reason", ""); code != 400 {
		t.Errorf("a removal without a reason = %d", code)
	}
	if code, _ := w.post("cards", "action", "remove", "agent", "am_02", "reason", "spam"); code != 303 {
		t.Errorf("remove = %d", code)
	}
	if page := w.get("/owner/page/directory/changes"); !strings.Contains(page, `removed: <span class="face"`) || strings.Index(page, "am_02") > strings.Index(page, "am_29") {
		t.Errorf("the removal is not the newest change:\n%s", page)
	}
	if code, page := w.post("cards", "action", "ban", "what", "am-03.example", "reason", "advertising"); code != 303 || !strings.Contains(page, "am-03.example") || !strings.Contains(page, "advertising") {
		t.Errorf("ban = %d\n%s", code, page)
	}
	if page := w.get("/owner/page/directory/cards?q=many"); strings.Contains(page, "am_03<") || !strings.Contains(page, "am_04<") {
		t.Errorf("the banned card is listed, or another one is not:\n%s", page)
	}
	if code, page := w.post("bans", "action", "lift", "kind", "host", "value", "am-03.example", "reason", "they stopped"); code != 303 || !goldentest.Page(t, "lift the only ban", page) {
		t.Errorf("lift = %d\n%s", code, page)
	}
	if code, _ := w.post("bans", "action", "ban", "what", "not a ban!", "reason", "x"); code != 400 {
		t.Errorf("a ban of nothing = %d", code)
	}
	if code, page := w.post("cards", "action", "handover", "agent", "am_05", "reason", "lost the credential"); code != 303 || !goldentest.Page(t, "hand over", page) {
		t.Errorf("hand over = %d\n%s", code, page)
	}
}

// TestStrangersTextIsInert: names, reports and reasons never act as markup.
func TestStrangersTextIsInert(t *testing.T) {
	w := newWorld(t, httpapi.OwnerConfig{})
	w.register("am_evil", hostile, hostile)
	for _, from := range []netip.Addr{netip.MustParseAddr("192.0.2.7"), rate.Unknown} {
		if err := w.reg.Report(t.Context(), "am_evil", directory.ReportRequest{Kind: "other", Text: hostile}, from); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		page := w.get("/owner/page/" + path)
		if strings.Contains(page, "<script>alert") || strings.ContainsAny(page, "\u202e\x1b") {
			t.Errorf("%s lets a stranger's text act:\n%s", path, page)
		}
	}
}

var paths = []string{"directory", "directory/cards", "directory/reports", "directory/bans", "directory/invites", "directory/changes"}
