package client

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// JoinLink returns the link to join the directory at base, "https://mesh.example/join#CODE". The code is the fragment,
// which browsers send to no server.
func JoinLink(base, code string) string {
	link := strings.TrimSuffix(strings.TrimRight(base, "/"), "/v1") + "/join"
	if code != "" {
		link += "#" + code
	}
	return link
}

var (
	joinCode    = regexp.MustCompile(`^[A-Za-z0-9._~-]{0,128}$`) // nothing that needs quotes in a header, a shell or a page
	errJoinLink = errors.New("a link to join a directory looks like https://mesh.example.org/join#CODE, or http:// on this machine")
)

// ParseJoinLink returns the base URL and the invite code of a link to join a directory. The code is empty if the link has
// none. A link that would send the code unencrypted over a network is refused. Errors do not contain the link.
func ParseJoinLink(link string) (base string, code Credential, err error) {
	u, err := url.Parse(strings.TrimSpace(link))
	if err != nil {
		return "", "", errJoinLink // err contains the code
	}
	root, isJoin := strings.CutSuffix(u.EscapedPath(), "/join")
	isSafe := u.Scheme == "https" || u.Scheme == "http" && IsLoopbackURL(u)
	if !isJoin || !isSafe || u.Host == "" || u.User != nil || u.RawQuery != "" || !joinCode.MatchString(u.Fragment) {
		return "", "", errJoinLink
	}
	return u.Scheme + "://" + u.Host + root + "/v1", Credential(u.Fragment), nil
}

// InviteFor returns the invite code that a text has for the directory at base. Each word of the text is a link to join
// one directory, or a code, which is for any directory that no link names.
func InviteFor(text, base string) (code Credential, err error) {
	for word := range strings.FieldsSeq(text) {
		if !strings.ContainsAny(word, ":/#") {
			if code == "" {
				code = Credential(word)
			}
			continue
		}
		joins, linked, err := ParseJoinLink(word)
		if err != nil {
			return "", fmt.Errorf("read invite: %w", err)
		}
		if joins == strings.TrimRight(base, "/") {
			return linked, nil
		}
	}
	return code, nil
}
