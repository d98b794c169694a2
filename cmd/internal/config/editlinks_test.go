package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/bridge"
)

var testKinds = []bridge.Kind{{Name: "mess"}, {Name: "mew"}}

// TestEditLinks: adding and removing a link changes only its own lines.
func TestEditLinks(t *testing.T) {
	garden := bridge.Link{Name: "garden", Kind: "mess", URL: "https://garden.example", Exchange: "home"}
	const gardenText = "  - name: garden\n    kind: mess\n    url: https://garden.example\n    exchange: home\n"
	for name, tt := range map[string]struct{ before, after string }{
		"no file":     {"", fileHead + "links:\n" + gardenText},
		"no links":    {"name: Me # it is me\n", "name: Me # it is me\nlinks:\n" + gardenText},
		"empty links": {"links: []\nname: Me\n", "links:\n" + gardenText + "name: Me\n"},
		"after a link that is not indented": {
			"links:\n- name: lab\n  kind: mew\n  url: wss://lab.example\n",
			"links:\n- name: lab\n  kind: mew\n  url: wss://lab.example\n- name: garden\n  kind: mess\n  url: https://garden.example\n  exchange: home\n",
		},
		"after another link": {
			"links:\n  # the lab\n  - {name: lab, kind: mew, url: 'wss://lab.example'}\n\n# my name\nname: Me\n",
			"links:\n  # the lab\n  - {name: lab, kind: mew, url: 'wss://lab.example'}\n  - name: garden\n    kind: mess\n    url: https://garden.example\n    exchange: home\n\n# my name\nname: Me\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := Source{File: filepath.Join(t.TempDir(), "agentmesh.yaml")}
			if tt.before != "" {
				if err := os.WriteFile(src.File, []byte(tt.before), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := src.AddLink(garden, testKinds); err != nil {
				t.Fatal(err)
			}
			read := func() string {
				t.Helper()
				data, err := os.ReadFile(src.File)
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			if diff := cmp.Diff(tt.after, read()); diff != "" {
				t.Error(diff)
			}
			if err := src.AddLink(garden, testKinds); err == nil {
				t.Error("the name is taken, and the link was added again")
			}
			if err := src.RemoveLink("garden", testKinds); err != nil {
				t.Fatal(err)
			}
			want := tt.before
			switch name {
			case "no file":
				want = fileHead
			case "empty links":
				want = "name: Me\n"
			}
			if diff := cmp.Diff(want, read()); diff != "" {
				t.Error(diff)
			}
			if err := src.RemoveLink("garden", testKinds); err == nil {
				t.Error("there is no such link, and it was removed")
			}
		})
	}
}

// TestEditLinksRefuses: a link that does not fit, and a list in another form, leave the file as it is.
func TestEditLinksRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		link bridge.Link
	}{
		"flow list":    {"links: [{name: lab, kind: mew, url: 'wss://lab.example'}]\n", bridge.Link{Name: "garden", Kind: "mess", URL: "https://garden.example"}},
		"unknown kind": {"name: Me\n", bridge.Link{Name: "garden", Kind: "mail", URL: "https://garden.example"}},
		"invalid name": {"name: Me\n", bridge.Link{Name: "My Garden", Kind: "mess", URL: "https://garden.example"}},
		"no URL":       {"name: Me\n", bridge.Link{Name: "garden", Kind: "mess"}},
		"user in URL":  {"name: Me\n", bridge.Link{Name: "garden", Kind: "mess", URL: "https://me:secret@garden.example"}},
		"line break":   {"name: Me\n", bridge.Link{Name: "garden", Kind: "mess", URL: "https://garden.example\nname: You"}},
	} {
		t.Run(name, func(t *testing.T) {
			src := Source{File: filepath.Join(t.TempDir(), "agentmesh.yaml")}
			if err := os.WriteFile(src.File, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := src.AddLink(tt.link, testKinds); err == nil {
				t.Error("the link was added")
			}
			data, err := os.ReadFile(src.File)
			if err != nil || string(data) != tt.text {
				t.Errorf("the file is now %q (%v)", data, err)
			}
		})
	}
}

// TestRemoveLinkWithComment: the comment above a link is removed with that link, and no other comment is.
func TestRemoveLinkWithComment(t *testing.T) {
	const (
		head, tail = "# the links\nlinks:\n", "# the end\nname: Me\n"
		lab        = "  # the lab,\n  # upstairs\n  - {name: lab, kind: mew, url: 'wss://lab.example'}\n"
		garden     = "  # the garden\n  - name: garden\n    kind: mess\n    url: https://garden.example\n"
	)
	for name, want := range map[string]string{"lab": head + garden + tail, "garden": head + lab + tail} {
		got, err := removeLink([]byte(head+lab+garden+tail), name)
		if diff := cmp.Diff(want, string(got)); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
}
