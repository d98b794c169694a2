package web_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPageAgreement: the page shows what is proposed, makes the owner choose one of several times, and calls only a
// real agreement agreed.
func TestPageAgreement(t *testing.T) {
	mesh := meshtest.New(t)
	chris, sarah := mesh.Node("chris", withBook), mesh.Node("sarah", withBook)
	p := servePage(t, sarah)
	out := outgoing(t, sarah.ID(), wire.Schedule, proposeSeveral)
	out.Conv = "conv_one"
	mustSend(t, chris.Node, out, 10*time.Second)
	talk := "conversations/" + string(chris.ID()) + "/conv_one"
	has := func(body string, want ...string) {
		t.Helper()
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("the page lacks %q:\n%s", text, body)
			}
		}
	}
	const agreed = ">Agreed</span>"
	body := p.must(talk)
	has(body, "They propose", `<h2 id="offer"><bdi class="line">Coffee</bdi></h2>`, `<dt>How long</dt><dd><bdi class="line">30 minutes</bdi></dd>`, "<dt>Where</dt>", `type="radio" name="selected" value="2036-02-21T14:00:00-08:00"`)
	if strings.Contains(body, agreed) {
		t.Errorf("a bare proposal is called agreed:\n%s", body)
	}
	if status, body := p.post(talk+"/reply", url.Values{"action": {"accept"}}); status != http.StatusConflict || !strings.Contains(body, "selects none") {
		t.Errorf("an accept that selects none: %d\n%s", status, body)
	}
	status, _ := p.post(talk+"/reply", url.Values{"action": {"accept"}, "selected": {"2036-02-21T14:00:00-08:00"}})
	if status != http.StatusOK {
		t.Errorf("an accept that selects one: %d", status)
	}
	waitFor(t, "it is agreed, and the opener closes", func() bool {
		body := p.must(talk)
		return strings.Contains(body, ">completed<") && strings.Contains(body, agreed)
	})
	has(p.must(talk), `</span> <bdi class="line">Coffee</bdi></h2>`, `<dt>When</dt><dd dir="auto"><bdi class="line">`+time.Date(2036, 2, 21, 22, 0, 0, 0, time.UTC).Local().Format("Mon 2 Jan 2006, 15:04 MST"))
	has(p.must(talk), `href="/owner/page/`+talk+`/event.ics"`)
	has(p.must(talk+"/event.ics"), "BEGIN:VCALENDAR", "SUMMARY:Coffee", "DTSTART:20360221T220000Z")
	cancel := outgoing(t, sarah.ID(), wire.Schedule, `{"action":"cancel","metadata":{"agreed_in":"conv_one"}}`)
	mustSend(t, chris.Node, cancel, 10*time.Second)
	body = p.must(talk)
	has(body, ">Cancelled</span>", "They cancelled it")
	if strings.Contains(body, agreed) {
		t.Errorf("after a cancel it is called agreed:\n%s", body)
	}
}
