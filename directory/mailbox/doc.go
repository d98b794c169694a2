// Package mailbox has the parts of the mailbox relay that need no registry: the agents that are connected, with the
// messages that pass through to them, and the counts that bound the mail of all mailboxes (protocol rules AM-67, AM-68).
// Package directory stores the mail and serves the routes.
package mailbox
