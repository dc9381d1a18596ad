-- A migration is one statement that may run twice: MySQL cannot undo half of one.
--
-- The record. Onrush writes it from the broker's messages; Redis decides who gets a place.
CREATE TABLE IF NOT EXISTS activity (
  id         BIGINT UNSIGNED  NOT NULL PRIMARY KEY,
  title      VARCHAR(200)     NOT NULL,
  capacity   INT UNSIGNED     NOT NULL,
  state      TINYINT          NOT NULL COMMENT '1 open, 2 paused',
  active     INT UNSIGNED     NOT NULL DEFAULT 0 COMMENT 'rows of user_activity with status 1, kept by the consumer',
  opens_at   DATETIME(3)      NULL COMMENT 'UTC',
  closes_at  DATETIME(3)      NULL COMMENT 'UTC',
  loaded_at  DATETIME(3)      NULL COMMENT 'UTC, when Redis first had it; from then on Redis alone may lose it',
  compared_at DATETIME(3)     NULL COMMENT 'UTC, when its rows were last compared with Redis one by one',
  archived_at DATETIME(3)     NULL COMMENT 'UTC, when Redis let its sign-ups go',
  created_at DATETIME(3)      NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
  updated_at DATETIME(3)      NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  CONSTRAINT activity_never_oversold CHECK (active <= capacity)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4;
