package mess

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestSmallAttachmentsTravel: a small file is sent inside of the message, also from an exchange without a public
// address. A file that does not fit stays behind, and its name is sent.
func TestSmallAttachmentsTravel(t *testing.T) {
	mesh := meshtest.New(t)
	away := newMeshNode(t, mesh, "away", func(c *Config) { c.Serve = false })
	home := newMeshNode(t, mesh, "home", func(c *Config) {
		c.Mesh = listAgents(c.Mesh, away.node.ID())
	})
	ref := home.request("client", "{intent: look into the fridge}")
	home.decide(askRoute, acl.Approve)
	there := away.waitMeshThread()
	var content []wire.Value
	for i, data := range [][]byte{[]byte("\xff\xd8\xffsmall"), bytes.Repeat([]byte("a"), 40<<10), bytes.Repeat([]byte("b"), 40<<10), bytes.Repeat([]byte("c"), 40<<10), bytes.Repeat([]byte("d"), 60<<10)} {
		entry, err := away.Upload(t.Context(), exchange.Owner("test"), there, "photo"+strconv.Itoa(i)+".jpg", data)
		if err != nil {
			t.Fatal(err)
		}
		content = append(content, entry)
	}
	_, err := away.Do(t.Context(), exchange.Owner("test"), thread.Block{{Type: "response", Body: wire.Obj(
		wire.TextField("re", there), wire.Field("content", wire.Arr(content...)))}}, exchange.Options{})
	if err != nil {
		t.Fatal(err)
	}
	home.waitStatus(ref, thread.Completed)
	said := home.allText(ref)
	if !strings.Contains(said, dataURI("image/jpeg", []byte("\xff\xd8\xffsmall"))) {
		t.Errorf("the small photo did not travel: %.500s", said)
	}
	if got := strings.Count(said, ";base64,"); got != 3 {
		t.Errorf("%d files travelled, want three: the others are too much", got)
	}
	for _, name := range []string{"photo3.jpg", "photo4.jpg"} {
		if !strings.Contains(said, name) {
			t.Errorf("the name of %s did not travel", name)
		}
	}
}

// TestNamelessAttachment: a file without a name is named by its kind and position.
func TestNamelessAttachment(t *testing.T) {
	l := newLab(t)
	ref := l.request("alice", `{intent: look, context: [{image: "`+dataURI("image/png", bytes.Repeat([]byte{1}, thread.MaxInline))+`"}]}`)
	if _, err := l.Attachment(t.Context(), exchange.Owner("test"), ref, "att-001-image-0.png"); err != nil {
		list, _ := l.Messages(t.Context(), ref)
		t.Errorf("%v: %.300s", err, list[0].Mess.JSON())
	}
}
