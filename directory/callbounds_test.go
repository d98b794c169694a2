package directory

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestCallBounds: one source cannot keep others from calling an agent, nor fill the mailbox with calls.
func TestCallBounds(t *testing.T) { // THREATS row 31, AM-42, AM-68
	w := newCallWorld(t)
	send := func(i, source int) int {
		_, failure, rec := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""), "Remote", fmt.Sprintf("203.0.%d.7:1", source))
		if failure.IsNull() {
			return 200
		}
		return rec.Code
	}
	accepted := map[int]int{}
	for source := range 9 {
		for i := range 60 {
			if send(source*100+i, source) == 200 {
				accepted[source]++
			}
		}
	}
	if accepted[0] != mailbox.MaxMail/mailbox.SenderDivisor {
		t.Errorf("one source has %d calls waiting", accepted[0])
	}
	if got := accepted[8]; got < 1 || got > mailbox.MaxMail/100 {
		t.Errorf("when a quarter of the mailbox has calls, a new source has %d", got)
	}
	if got := send(9999, 200); got != 200 {
		t.Errorf("an honest newcomer = %d", got)
	}
	wantReceipt(t, w.do("POST", "/v1/mailbox/am_alice", testMessage("1", "am_bob", "am_alice")), 202)
}

// TestCallsOfBannedNetwork: a banned network cannot call an agent by A2A, and gets no task of earlier calls.
func TestCallsOfBannedNetwork(t *testing.T) {
	w := newCallWorld(t)
	send := func(id, remote string) (wire.Value, wire.Value) {
		task, failure, _ := w.call("t", "SendMessage", sendParams(id, "hi", ""), "Remote", remote)
		return task, failure
	}
	task, _ := send("m1", "198.51.100.7:1")
	if _, err := w.reg.Ban(t.Context(), moderation.Ban{Kind: moderation.BanNetwork, Value: "198.51.100.0/24", Reason: "flooding"}, "test"); err != nil {
		t.Fatal(err)
	}
	if _, failure := send("m2", "198.51.100.8:1"); !strings.Contains(string(failure.JSON()), "PERMISSION_DENIED") {
		t.Errorf("a message from a banned network gets %s", failure.JSON())
	}
	for _, method := range []string{"CancelTask", "GetTask", "SubscribeToTask"} {
		_, failure, _ := w.call("t", method, `{"id":"`+task.GetStr("id")+`"}`, "Remote", "198.51.100.7:1")
		if !strings.Contains(string(failure.JSON()), "PERMISSION_DENIED") {
			t.Errorf("%s from a banned network gets %s", method, failure.JSON())
		}
	}
	if _, failure := send("m3", "203.0.113.7:1"); !failure.IsNull() {
		t.Errorf("another network gets %s", failure.JSON())
	}
	if list, _ := w.calls(); len(list) != 2 {
		t.Errorf("%d calls wait, want the one before the ban and that of the other network", len(list))
	}
}

// TestCallBoundsOfNetworks: the addresses of one network do not fill the mailbox with calls, and the rest of the
// mailbox is for other networks.
func TestCallBoundsOfNetworks(t *testing.T) { // THREATS row 31, AM-42
	for network, pattern := range map[string]string{"an IPv4 /24": "203.0.113.%d:1", "an IPv6 /56": "[2001:db8:0:%02x::1]:1", "an IPv6 /48": "[2001:db8:0:%02x00::1]:1"} {
		w := newCallWorld(t)
		sent := 0
		send := func(remote string) bool {
			sent++
			_, failure, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", sent), "hi", ""), "Remote", remote)
			return failure.IsNull()
		}
		for source := range 60 {
			for send(fmt.Sprintf(pattern, source)) {
			}
		}
		for i := range 2 * mailbox.MaxMail / 100 { // what another network may have at any time
			if !send(fmt.Sprintf("198.51.100.%d:1", 7+i/5)) {
				t.Errorf("%s: call %d of another network is refused", network, i)
			}
		}
	}
}

// TestCallRefusedCheaply: a call that is refused because the tasks of the agent are too many reads little from the
// store, however large they are.
func TestCallRefusedCheaply(t *testing.T) { // THREATS row 26
	w := newCallWorld(t)
	listed := &listedStore{Store: w.store}
	w = newWorldOver(t, listed, func(c *Config) { c.Addresses = httpapi.New(httpapi.Config{RequestsPerMinute: -1}).Addresses() })
	for i := range mailbox.MaxMail / mailbox.SenderDivisor { // all that one source may have
		w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""))
	}
	list, _ := w.calls()
	for _, c := range list[:10] {
		want(t, w.report(c, `{"task":{"id":"r","status":{"state":"TASK_STATE_WORKING"},"x":"`+strings.Repeat("x", 200<<10)+`"}}`), 200, "")
	}
	listed.bytes.Store(0)
	const refused = 10
	for i := range refused {
		if _, failure, rec := w.call("t", "SendMessage", sendParams(fmt.Sprint("more", i), "hi", "")); failure.IsNull() {
			t.Fatalf("a call over the share = %s", rec.Body)
		}
	}
	if got := listed.bytes.Load(); got > refused*mailbox.MaxMail/mailbox.SenderDivisor<<10 {
		t.Errorf("%d refused calls list %d bytes", refused, got)
	}
}

// TestCallLargestReport: a report with as many JSON values as the relay accepts can be read again, although the relay
// adds ids to it.
func TestCallLargestReport(t *testing.T) { // THREATS row 26
	w := newCallWorld(t)
	task, _, _ := w.call("t", "SendMessage", sendParams("m", "hi", ""))
	list, _ := w.calls()
	status := 0
	for n := 30_000; n > 29_900 && status != 200; n-- {
		zeros := strings.TrimSuffix(strings.Repeat("0,", n), ",")
		status = w.report(list[0], `{"id":"r","status":{"state":"TASK_STATE_WORKING","message":{}},"artifacts":[`+zeros+`]}`).Code
	}
	if status != 200 {
		t.Fatalf("the smallest report = %d", status)
	}
	if got := w.do("GET", "/a2a/am_alice/tasks/"+task.GetStr("id"), "", withBearer("t")...); got.Code != 200 || got.Body.Len() < 2*29_900 {
		t.Errorf("the task = %d %.200s", got.Code, got.Body)
	}
	// The relay's own status has more values than the agent's.
	more := sendParams("m2", "more", `,"taskId":"`+task.GetStr("id")+`"`)
	want(t, w.do("POST", "/a2a/am_alice/message:send", more, append(withBearer("t"), "A2A-Version", "1.0")...), 200, "")
	if got := w.do("GET", "/a2a/am_alice/tasks/"+task.GetStr("id"), "", withBearer("t")...); got.Code != 200 || got.Body.Len() < 2*29_900 {
		t.Errorf("the continued task = %d %.200s", got.Code, got.Body)
	}
}

// TestCallRowsAreSmall: what an agent reports does not enlarge the record of a task, which every refused call reads.
func TestCallRowsAreSmall(t *testing.T) { // THREATS row 26
	w := newCallWorld(t)
	for i, report := range []string{
		`{"id":"r","status":{"state":"TASK_STATE_WORKING","timestamp":"%s"}}`, `{"id":"r","status":{"state":"%s"}}`, `{"id":"%s","status":{"state":"TASK_STATE_WORKING"}}`,
		`{"id":"r","status":{"state":"TASK_STATE_WORKING"},"x":"%s"}`, `{"error":{"code":-32603,"data":[{"domain":"a2a-protocol.org","reason":"%s"}]}}`,
	} {
		task, _, _ := w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""))
		list, _ := w.calls()
		w.report(list[i], fmt.Sprintf(report, strings.Repeat("x", 300<<10)))
		row, err := w.store.Records().Get(t.Context(), "relay-task", task.GetStr("id"), time.Now())
		if err != nil || len(row.Body) > 4<<10 {
			t.Errorf("after %s the record has %d bytes; %v", report, len(row.Body), err)
		}
	}
}

// listedStore counts the bytes of the records that its lists return.
type listedStore struct {
	store.Store
	bytes atomic.Int64
}

func (s *listedStore) Records() store.Records { return listedRecords{s.Store.Records(), s} }

type listedRecords struct {
	store.Records
	s *listedStore
}

func (r listedRecords) List(ctx context.Context, ns, term, after string, limit int, now time.Time) (store.RecordPage, error) {
	page, err := r.Records.List(ctx, ns, term, after, limit, now)
	for _, rec := range page.Records {
		r.s.bytes.Add(int64(len(rec.Body)))
	}
	return page, err
}

// TestCallResultsWithoutRoom: a task whose answer finds no room names this reason, not the size of the answer.
func TestCallResultsWithoutRoom(t *testing.T) {
	w := newCallWorld(t)
	report := `{"task":{"id":"r","status":{"state":"TASK_STATE_INPUT_REQUIRED"},"x":"` + strings.Repeat("x", 200<<10) + `"}}`
	last := wire.Value{}
	for i := range mailbox.MaxMailBytes/mailbox.SenderDivisor/(200<<10) + 1 { // one more than one source may have
		last, _, _ = w.call("t", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""))
		list, ids := w.calls()
		want(t, w.report(list[0], report), 200, "")
		want(t, w.do("POST", "/v1/relay/"+ids[0]+"/ack", "", withBearer(alice)...), 200, "")
	}
	got, _, _ := w.call("t", "GetTask", `{"id":"`+last.GetStr("id")+`"}`)
	if stateOf(got) != "TASK_STATE_FAILED" || !strings.Contains(string(got.JSON()), "no room") {
		t.Errorf("without room the task is %.400s", got.JSON())
	}
}

// TestCallResultsOfOthers: a source that has used its share does not make room for itself with the results of others.
func TestCallResultsOfOthers(t *testing.T) {
	w := newCallWorld(t)
	task, _, _ := w.call("victim", "SendMessage", sendParams("m", "hi", ""), "Remote", "203.0.113.1:1")
	list, _ := w.calls()
	want(t, w.report(list[0], remoteTask("TASK_STATE_COMPLETED", "01")), 200, "")
	for i := range mailbox.MaxMail/mailbox.SenderDivisor + 1 {
		_, failure, rec := w.call("flood", "SendMessage", sendParams(fmt.Sprint("m", i), "hi", ""), "Remote", "203.0.113.66:1")
		if full := i == mailbox.MaxMail/mailbox.SenderDivisor; failure.IsNull() == full {
			t.Errorf("message %d = %d %s", i, rec.Code, rec.Body)
		}
	}
	if _, failure, _ := w.call("victim", "GetTask", `{"id":"`+task.GetStr("id")+`"}`); !failure.IsNull() {
		t.Errorf("the result of another caller = %s", failure.JSON())
	}
}

// TestCallStreamPlaces: a message whose stream gets no place is refused and not stored, so the agent does not handle
// what its caller sends again.
func TestCallStreamPlaces(t *testing.T) { // THREATS row 46
	w := newCallWorld(t)
	server := httptest.NewServer(w.edge.Handler())
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	accepted, refused := 0, 0
	for i := range 24 {
		req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/a2a/am_alice/message:stream", strings.NewReader(sendParams(fmt.Sprint("m", i), "hi", "")))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/a2a+json")
		req.Header.Set("A2A-Version", "1.0")
		resp, err := server.Client().Do(req) // returns with the first event
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
			accepted++
		case http.StatusTooManyRequests:
			refused++
		}
	}
	if list, _ := w.calls(); refused != 8 || len(list) != accepted {
		t.Errorf("%d streams are open, %d were refused, and %d messages wait for the agent", accepted, refused, len(list))
	}
}
