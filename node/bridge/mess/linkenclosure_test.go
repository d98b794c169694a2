package mess

import (
	"bytes"
	"context"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
)

// TestPhotoIntoADirectoryOnce: a message that is posted again after a crash exists once, with its file.
func TestPhotoIntoADirectoryOnce(t *testing.T) {
	files := map[string]exchange.Attachment{"content://x/y?token=z": {Name: "att-009-image-y.png", Mime: "image/png", Size: len(smallPhoto), Data: smallPhoto}}
	r := &dirRemote{dir: t.TempDir(), name: "us", findEnclosure: func(_ context.Context, uri string) (exchange.Attachment, bool, error) {
		a, ok := files[uri]
		return a, ok, nil
	}}
	ref, err := r.create(t.Context(), "", mustParse(t, "- request: {id: a, intent: look}")[0].Body)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.post(t.Context(), "", ref, mustParse(t, `- note: {re: x, context: [{image: {uri: "content://x/y?token=z", name: y.png, mime: image/png}}]}`)); err != nil {
			t.Fatal(err)
		}
	}
	v, err := r.view(t.Context(), ref)
	if err != nil || len(v.messages) != 2 {
		t.Fatalf("%d messages, %v", len(v.messages), err)
	}
	if got, err := r.attachment(t.Context(), ref, "att-002-image-y.png"); err != nil || !bytes.Equal(got, smallPhoto) {
		t.Errorf("%d bytes, %v in %s", len(got), err, v.messages[1].Mess.JSON())
	}
}
