// Package conversations keeps what two agents said to each other: the state machine as a pure function
// ([Conversation.Next]), the transcript as a hash chain ([Link]), and a [Book] of them over the store.
//
// It neither sends nor signs nor answers. Start with [Book.Do]: record what happened on the [Unit] it makes, and add the
// changes of records that belong to it. Do commits all of that at once, or decides again if a row moved meanwhile.
//
// What holds always: a conversation that has ended stays ended. Whether it has expired is judged when it is looked at,
// to the second, and never depends on a sweeper. A peer's conversation id means something beside that peer only
// (AM-37).
package conversations
