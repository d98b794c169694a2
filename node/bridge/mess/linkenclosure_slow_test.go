//go:build slow

package mess

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestPhotoIntoADirectory: files of ours are stored beside a thread in a folder, however large, even without a public
// listener.
func TestPhotoIntoADirectory(t *testing.T) {
	for name, inGit := range map[string]bool{"plain": false, "git": true} {
		t.Run(name, func(t *testing.T) {
			s := newSharedFolder(t, inGit, nil)
			large := append(smallPhoto[:8:8], bytes.Repeat([]byte("q"), 3<<20)...)
			where := s.home.request(thread.OwnerID, "{id: draft, intent: draft}")
			secret, err := s.home.Upload(t.Context(), exchange.Owner("test"), where, "secret.png", smallPhoto)
			if err != nil {
				t.Fatal(err)
			}
			s.home.do(thread.OwnerID, "- note: {re: draft, context: ["+string(secret.JSON())+"]}")
			// A requester here may write what looks like an address of ours.
			here := s.home.request("client", `{id: saw, intent: saw the log, context: [{image: "`+dataURI("image/png", large[:thread.MaxInline+8])+`"}, {image: "`+
				enclosure(where, secret.At(0).GetStr("file"), strings.Repeat("0", 64))+`"}]}`)
			s.home.sendThrough(here)
			bob := s.side("bob")
			there := s.only(bob)
			check := func(file string, want []byte) {
				t.Helper()
				text := s.text(bob, there)
				if !strings.Contains(text, "file: "+file) || strings.Contains(text, "http:") || strings.Contains(text, ";base64,") {
					t.Errorf("the file says %.2000s", text)
				}
				if got, err := bob.attachment(t.Context(), there, file); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s has %d bytes, %v", file, len(got), err)
				}
			}
			check("att-001-image-0.png", large[:thread.MaxInline+8])
			if _, err := bob.attachment(t.Context(), there, "att-001-image-1-secret.png"); err == nil {
				t.Error("a file of another thread lies there")
			}

			// In the other direction: a requester there gets the photo of an executor here.
			asked := s.create("carol", "{id: look, intent: look}")
			answer := s.home.waitThread("look")
			s.home.do(thread.OwnerID, "- status: {re: "+answer+", code: claimed}")
			var content []wire.Value
			for _, data := range [][]byte{smallPhoto, large} {
				entry, err := s.home.Upload(t.Context(), exchange.Owner("test"), answer, "photo.png", data)
				if err != nil {
					t.Fatal(err)
				}
				content = append(content, entry)
			}
			_, err = s.home.Do(t.Context(), exchange.Owner("test"), thread.Block{{Type: "response", Body: wire.Obj(
				wire.TextField("re", answer), wire.Field("content", wire.Arr(content...)))}}, exchange.Options{})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the result there", func() bool {
				v, err := bob.view(t.Context(), asked)
				if _, pulled := bob.list(t.Context()); pulled != nil {
					err = pulled
				}
				return err == nil && v.status == thread.Completed
			})
			there = asked
			v, err := bob.view(t.Context(), there)
			if err != nil {
				t.Fatal(err)
			}
			serial := strconv.Itoa(v.messages[len(v.messages)-1].Serial)
			check("att-00"+serial+"-image-photo.png", smallPhoto)
			check("att-00"+serial+"-image-1-photo.png", large)
		})
	}
}

func (s *sharedFolder) text(r *dirRemote, there string) string {
	s.t.Helper()
	if _, err := r.list(s.t.Context()); err != nil { // pulled
		s.t.Fatal(err)
	}
	root, err := folder.OpenLayout(r.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer root.Close()
	at, _ := folder.Find(root, there)
	data, err := os.ReadFile(filepath.Join(r.dir, at, folder.ThreadFileName(0, there)))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}
